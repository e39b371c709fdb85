package join

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/internal/wake"
)

const (
	// maxWaiting bounds connections that have not proved the secret yet, and maxPerAddress those from one IPv4 address or
	// IPv6 /56: a member needs two for one round trip, a stranger keeps its own for patience. Peers that proved it before
	// have places of their own, maxPerPeer each, so that strangers do not shut them out.
	maxWaiting    = 512
	maxPerAddress = 128
	maxPerPeer    = 8
	// maxRemembered bounds the peers that are remembered to have proved the secret.
	maxRemembered = 1 << 14
	// sweepEvery is how often connections are closed whose time is over.
	sweepEvery = 250 * time.Millisecond
	// maxLogged bounds the log lines of one minute.
	maxLogged = 64
	// lastWords is what a refused connection has left to read the verdict.
	lastWords = time.Second
)

// Door is the relay's side: it knows who has proved the secret, and who may still do so. A connection that has not after
// patience is closed; until then its peer can use nothing but this protocol (Guard). A peer is admitted as long as it has
// a connection that proved the secret.
//
// Fields: all but the first three are one state, under one lock.
type Door struct {
	self    peer.ID
	refused func(reason string) // counts; the reasons are values of a metric's label
	log     *slog.Logger

	mu         sync.Mutex // guards what follows; nothing outside this package is called while it is held, except wake
	secrets    []Secret
	banned     map[peer.ID]bool // refused although they know the secret
	visitors   map[peer.ID]*visitor
	near       map[netip.Prefix]int // places taken by strangers, by address
	strangers  int                  // all of them
	remembered map[peer.ID]struct{}
	logged     map[peer.ID]time.Time
}

// visitor is a peer with a connection here.
type visitor struct {
	waiting map[string]*candidate   // by the remote multiaddr
	in      map[network.Conn]Secret // what each connection has proved
	changed wake.All
}

// candidate is a connection from its handshake to the proof.
type candidate struct {
	conn   network.Conn // nil until the swarm has it
	prefix netip.Prefix // zero: a peer that is remembered
	until  time.Time
}

// NewDoor returns the door of relay self. refused counts refusals by reason.
func NewDoor(self peer.ID, secrets []Secret, refused func(string), log *slog.Logger) *Door {
	return &Door{self: self, secrets: secrets, refused: refused, log: log, visitors: make(map[peer.ID]*visitor),
		near: make(map[netip.Prefix]int), remembered: make(map[peer.ID]struct{}), logged: make(map[peer.ID]time.Time)}
}

// Admitted reports whether p has proved the secret on a connection that it still has.
func (d *Door) Admitted(p peer.ID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.visitors[p]
	return v != nil && len(v.in) > 0
}

// Waits reports whether p has a connection that may still prove the secret.
func (d *Door) Waits(p peer.ID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.visitors[p]
	return v != nil && len(v.waiting) > 0
}

// Len is the number of peers admitted now.
func (d *Door) Len() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, v := range d.visitors {
		if len(v.in) > 0 {
			n++
		}
	}
	return n
}

// Knock gives an incoming connection of a peer that is not known otherwise a place, if there is one. The handshake has shown
// who the peer is.
func (d *Door) Knock(p peer.ID, remote ma.Multiaddr) bool {
	why := d.place(p, remote.String(), prefixOf(remote))
	if why != "" {
		d.refused(why)
	}
	return why == ""
}

// place takes one, or says why not.
func (d *Door) place(p peer.ID, addr string, prefix netip.Prefix) string {
	const full = "too many without the join secret"
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.banned[p] {
		return "banned"
	}
	v := d.visitors[p]
	if v == nil {
		v = &visitor{waiting: make(map[string]*candidate), in: make(map[network.Conn]Secret)}
	}
	if len(v.waiting) >= maxPerPeer {
		return full
	}
	if _, ok := d.remembered[p]; ok {
		prefix = netip.Prefix{}
	} else {
		if d.strangers >= maxWaiting || d.near[prefix] >= maxPerAddress {
			return full
		}
		d.strangers++
		d.near[prefix]++
	}
	d.leaveLocked(p, addr) // another connection from the very same address: that one is dead
	v.waiting[addr] = &candidate{prefix: prefix, until: time.Now().Add(patience)}
	d.visitors[p] = v
	return ""
}

// leaveLocked takes the place of one connection back, if it has one.
func (d *Door) leaveLocked(p peer.ID, addr string) {
	v := d.visitors[p]
	if v == nil || v.waiting[addr] == nil {
		return
	}
	if prefix := v.waiting[addr].prefix; prefix.IsValid() {
		d.strangers--
		if d.near[prefix]--; d.near[prefix] == 0 {
			delete(d.near, prefix)
		}
	}
	delete(v.waiting, addr)
	d.tidyLocked(p, v)
}

// tidyLocked forgets a visitor without connections, and has those look again who wait for it.
func (d *Door) tidyLocked(p peer.ID, v *visitor) {
	if len(v.waiting)+len(v.in) == 0 {
		delete(d.visitors, p)
	}
	v.changed.Broadcast()
}

// prefixOf is the network that counts as one address.
func prefixOf(a ma.Multiaddr) netip.Prefix {
	ip := netip.IPv6Unspecified() // for all that have none
	if raw, err := manet.ToIP(a); err == nil {
		if x, ok := netip.AddrFromSlice(raw); ok {
			ip = x.Unmap()
		}
	}
	bits := 56
	if ip.Is4() {
		bits = 32
	}
	return netip.PrefixFrom(ip.WithZone(""), bits).Masked()
}

// Connected takes note that the swarm has c. It reports false if c has neither a place nor proved anything.
func (d *Door) Connected(c network.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.visitors[c.RemotePeer()]
	if v == nil {
		return false
	}
	if x := v.waiting[c.RemoteMultiaddr().String()]; x != nil {
		x.conn = c
		return true
	}
	_, proved := v.in[c]
	return proved
}

// Disconnected takes note that c ended.
func (d *Door) Disconnected(c network.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := c.RemotePeer()
	d.leaveLocked(p, c.RemoteMultiaddr().String())
	if v := d.visitors[p]; v != nil {
		delete(v.in, c)
		d.tidyLocked(p, v)
	}
}

// admit lets c's peer in: it has proved s.
func (d *Door) admit(c network.Conn, s Secret) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := c.RemotePeer()
	v := d.visitors[p]
	if v == nil || c.IsClosed() || d.banned[p] {
		return // Disconnected may have been called before
	}
	v.in[c] = s
	d.leaveLocked(p, c.RemoteMultiaddr().String())
	d.tidyLocked(p, v)
	for other := range d.remembered {
		if len(d.remembered) < maxRemembered {
			break
		}
		delete(d.remembered, other)
	}
	d.remembered[p] = struct{}{}
}

// refuse counts and logs a failure, and leaves the connection lastWords.
func (d *Door) refuse(c network.Conn, reason string, err error) {
	d.refused(reason)
	p, now := c.RemotePeer(), time.Now()
	if d.note(c, p, now) {
		d.log.Warn("peer refused: it has not proved the join secret; if it is a node, compare the files that joinSecretFile names here and there",
			"peer", p, "address", c.RemoteMultiaddr(), "reason", reason, "err", err)
	}
}

// note shortens the time that c has, and says whether p's failure is to be logged: once a minute.
func (d *Door) note(c network.Conn, p peer.ID, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v := d.visitors[p]; v != nil {
		if x := v.waiting[c.RemoteMultiaddr().String()]; x != nil {
			x.until = now.Add(lastWords)
		}
	}
	for other, at := range d.logged {
		if now.Sub(at) >= repeatAfter {
			delete(d.logged, other)
		}
	}
	if _, lately := d.logged[p]; lately || len(d.logged) >= maxLogged {
		return false
	}
	d.logged[p] = now
	return true
}

// Set replaces the secrets. Connections that proved a secret which is gone are closed: their peers may come back with
// another one.
func (d *Door) Set(secrets []Secret) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.secrets = secrets
	for p, v := range d.visitors {
		for c, s := range v.in {
			if !slices.Contains(secrets, s) {
				delete(v.in, c)
				go c.Close() // its last words may take some 100 ms
			}
		}
		d.tidyLocked(p, v)
	}
}

// Ban replaces the peers that are refused although they know the secret. Those that are connected are no longer admitted;
// the caller closes their connections.
func (d *Door) Ban(peers map[peer.ID]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.banned = peers
	for p, v := range d.visitors {
		if !peers[p] {
			continue
		}
		clear(v.in)
		for addr := range v.waiting {
			d.leaveLocked(p, addr)
		}
		d.tidyLocked(p, v)
	}
}

// Run closes connections that do not prove the secret in time, until ctx ends.
func (d *Door) Run(ctx context.Context) {
	for wake.Sleep(ctx, sweepEvery) {
		for _, c := range d.late(time.Now()) {
			d.refused("no join secret")
			go c.Close()
		}
	}
}

// late takes back the places whose time is over, and returns their connections.
func (d *Door) late(now time.Time) (out []network.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for p, v := range d.visitors {
		for addr, c := range v.waiting {
			if now.Before(c.until) {
				continue
			}
			if c.conn != nil {
				out = append(out, c.conn)
			}
			d.leaveLocked(p, addr)
		}
	}
	return out
}
