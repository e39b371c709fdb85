package gate

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/quota"
	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/admission/join"
	"edgemesh/tunnel/p2p/admission/pool"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/who/refusals"
)

const (
	// circuitPart: over each relay as many handshakes may be under way as that part of the direct ones, beside these.
	circuitPart = 8
	// maxAddresses and maxPeers bound what is remembered of those that were admitted.
	maxAddresses, maxPeers = 1 << 16, 1 << 14
	// enough is more than a member needs for the proof: a round trip or two.
	enough = time.Second
	// leastPart: where each address has one slot, nobody is displaced before that part of its stay.
	leastPart = 4
	// lastWords is what a refused connection has left to read the verdict.
	lastWords = time.Second
)

// table has all connections. It decides, and touches none of them.
type table struct {
	isMember func(peer.ID) bool
	policy   *Policy

	mu         sync.Mutex // guards what follows, and the state of each conn; nothing is locked below it but a wake.All
	handshakes *pool.Pool[*conn]
	circuits   map[string]int             // handshakes over circuits, by relay
	homes      *pool.Memory[netip.Prefix] // addresses that members have come from
	peers      map[peer.ID]*connsOf       // whose handshake is over
	pending    map[*conn]struct{}
	elsewhere  *pool.Pool[*conn]     // slots of pending ones from addresses that no member has come from
	home       *pool.Pool[*conn]     // slots of the others
	remembered *pool.Memory[peer.ID] // peers that have proved a secret; they need no slot
	secrets    []join.Secret
	mostProved int
	provedAt   map[netip.Prefix]int // connections that a proof has admitted, of peers that are not listed
	allProved  int
}

// connsOf are a peer's connections.
type connsOf struct {
	conns   []*conn // the latest last
	changed wake.All
}

func newTable(c Config) *table {
	t := &table{isMember: c.IsMember, policy: c.Policy, handshakes: pool.New[*conn](c.Handshakes), circuits: make(map[string]int),
		homes: pool.NewMemory[netip.Prefix](maxAddresses), peers: make(map[peer.ID]*connsOf), pending: make(map[*conn]struct{})}
	if c.Policy != nil {
		t.secrets, t.remembered = c.Policy.secrets, pool.NewMemory[peer.ID](maxPeers)
		t.mostProved, t.provedAt = c.Proved, make(map[netip.Prefix]int)
		t.elsewhere = pool.New[*conn](c.Policy.slots)
		if t.home = t.elsewhere; c.Policy.homeSlots > 0 {
			t.home = pool.New[*conn](c.Policy.homeSlots)
		}
	}
	return t
}

// claim takes a slot for a handshake. A circuit's address begins with its relay's, whose direct slots a flood may hold.
func (t *table) claim(c *conn) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if endpoint.IsCircuit(c.addr) {
		relay, _ := c.addr.ValueForProtocol(ma.P_P2P)
		c.prefix, _ = pool.PrefixOf(c.addr) // the relay's: what waits is shared among relays
		if t.circuits[relay] >= max(t.handshakes.Slots()/circuitPart, 1) {
			return pool.ErrFull
		}
		t.circuits[relay]++
		c.release = func() {
			if t.circuits[relay]--; t.circuits[relay] == 0 {
				delete(t.circuits, relay)
			}
		}
		return nil
	}
	if c.prefix, c.direct = pool.PrefixOf(c.addr); !c.direct {
		return nil
	}
	if err := t.handshakes.Share(c.prefix, t.homes.Has(pool.Prefix(c.prefix.Addr()))); err != nil {
		return err
	}
	t.handshakes.Add(c, c.prefix)
	c.release = func() { t.handshakes.Remove(c, c.prefix) }
	return nil
}

// enter takes c, which is p's, out of its handshake: it is admitted, or waits; or reason says why not. victim has lost its slot
// for it.
func (t *table) enter(c *conn, p peer.ID) (victim *conn, reason string) {
	listed, ruling := !c.inbound || t.isMember(p), LeftToGater
	if !listed && t.policy != nil {
		ruling = t.policy.judge(p)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case c.state != handshaking:
		return nil, "" // it has ended
	case ruling == Banned:
		return nil, refusals.Banned
	case ruling == MayWait:
		if victim, reason = t.wait(c, p); reason != "" {
			return nil, reason
		}
	default:
		c.to(admitted)
	}
	if c.direct && (listed || t.admitsLocked(p)) {
		t.homes.Add(pool.Prefix(c.prefix.Addr()))
	}
	c.peer = p
	of := t.peers[p]
	if of == nil {
		of = &connsOf{}
		t.peers[p] = of
	}
	of.conns = append(of.conns, c)
	return victim, ""
}

// wait takes a slot for c. The caller holds mu.
func (t *table) wait(c *conn, p peer.ID) (victim *conn, reason string) {
	if of := t.peers[p]; of != nil && t.policy.perPeer > 0 {
		n := 0
		for _, other := range of.conns {
			if other.pending() {
				n++
			}
		}
		if n >= t.policy.perPeer {
			return nil, t.policy.full
		}
	}
	var from *pool.Pool[*conn]
	if !t.remembered.Has(p) {
		if from = t.elsewhere; t.homes.Has(pool.Prefix(c.prefix.Addr())) {
			from = t.home
		}
		if t.policy.perPrefix > 0 && from.At(c.prefix) >= t.policy.perPrefix {
			return nil, t.policy.full
		}
		var ok bool
		if victim, ok = from.Displace(c.prefix, t.policy.stay/leastPart); !ok {
			return nil, t.policy.full
		}
		if victim != nil {
			t.leave(victim)
		}
	}
	c.to(waiting)
	if from != nil {
		from.Add(c, c.prefix)
		c.release = func() { from.Remove(c, c.prefix) }
	}
	c.deadline = time.Now().Add(t.policy.stay)
	t.pending[c] = struct{}{}
	return victim, ""
}

// leave closes c. The caller holds mu.
func (t *table) leave(c *conn) {
	if !c.to(closed) {
		return
	}
	delete(t.pending, c)
	if of := t.peers[c.peer]; of != nil {
		if of.conns = slices.DeleteFunc(of.conns, func(x *conn) bool { return x == c }); len(of.conns) == 0 {
			delete(t.peers, c.peer)
		}
		of.changed.Broadcast()
	}
}

// end notes that c has ended, and reports whether it leaves without a proof that it had time for: nodes without a secret do
// not wait for their deadline.
func (t *table) end(c *conn) (unproved bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	unproved = c.mute(t.policy) && time.Until(c.deadline) <= t.policy.stay-enough
	t.leave(c)
	return unproved
}

// sweep takes out those whose time is over, and returns those that the swarm has; of these, unproved are worth counting. Those
// whose peers the membership lists meanwhile are admitted.
func (t *table) sweep(now time.Time) (late, unproved []*conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.pending {
		switch {
		case now.Before(c.deadline):
			continue
		case t.isMember(c.peer):
			t.admit(c)
			continue
		case c.conn != nil:
			late = append(late, c)
			if c.mute(t.policy) {
				unproved = append(unproved, c)
			}
		}
		t.leave(c)
	}
	return late, unproved
}

// admit lets c's peer use everything. The caller holds mu.
func (t *table) admit(c *conn) {
	if c.to(admitted) {
		delete(t.pending, c)
		t.peers[c.peer].changed.Broadcast()
	}
}

// list admits what p has waiting, where it is listed now.
func (t *table) list(p peer.ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if of := t.peers[p]; of != nil && t.isMember(p) {
		for _, c := range of.conns {
			t.admit(c)
			if c.direct {
				t.homes.Add(pool.Prefix(c.prefix.Addr()))
			}
		}
	}
}

// asks notes that c shows its one statement, and reports false where it may not.
func (t *table) asks(c *conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return c.to(asking)
}

// attach notes that the swarm has c, and reports whether it may stay.
func (t *table) attach(c *conn, nc network.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.state == closed {
		return false // who closed it has read conn
	}
	c.conn = nc
	return t.staysLocked(c)
}

func (t *table) stays(c *conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.staysLocked(c)
}

func (t *table) staysLocked(c *conn) bool {
	return c.state != closed && (t.isMember(c.peer) || (c.pending() || c.proved()) && t.policy.judge(c.peer) == MayWait)
}

func (t *table) admits(p peer.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.admitsLocked(p)
}

func (t *table) admitsLocked(p peer.ID) bool {
	of := t.peers[p]
	return of != nil && slices.ContainsFunc(of.conns, (*conn).proved) && t.policy.judge(p) == MayWait
}

// proved is how many peers are admitted by a proof.
func (t *table) proved() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for p := range t.peers {
		if t.admitsLocked(p) {
			n++
		}
	}
	return n
}

// takeCircuit takes the one circuit that each of p's connections may have.
func (t *table) takeCircuit(p peer.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.peers[p]
	return of != nil && t.policy.circuit && slices.ContainsFunc(of.conns, func(c *conn) bool {
		takes := c.conn != nil && c.to(asking)
		if takes {
			c.deadline = time.Now().Add(askTime)
		}
		return takes
	})
}

// verify notes that c is proving one of the secrets.
func (t *table) verify(c *conn) []join.Secret {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.to(asking)
	return slices.Clone(t.secrets)
}

// verified admits c, whose swarm connection is nc, by the secret that it has proved, or returns why not: that may have been
// replaced since verify, and who knows it makes as many keys as it likes, so that an address has a share.
func (t *table) verified(c *conn, nc network.Conn, s join.Secret) (reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.secrets, s) {
		return refusals.WrongSecret
	}
	mayProve := c.pending() || c.state == admitted && c.proved()
	if !mayProve || nc.IsClosed() || t.policy.judge(c.peer) != MayWait {
		return ""
	}
	at, counts := pool.Prefix(c.prefix.Addr()), !c.proved() && t.mostProved > 0 && !t.isMember(c.peer)
	if left := t.mostProved - t.allProved; counts && (left <= 0 || quota.Crowded(t.mostProved, left, t.provedAt[at])) {
		return refusals.Connections
	}
	c.conn, c.secret = nc, s
	t.admit(c)
	if counts {
		t.allProved++
		t.provedAt[at]++
		c.release = func() {
			t.allProved--
			if t.provedAt[at]--; t.provedAt[at] == 0 {
				delete(t.provedAt, at)
			}
		}
	}
	t.remembered.Add(c.peer)
	if c.direct {
		t.homes.Add(pool.Prefix(c.prefix.Addr()))
	}
	return ""
}

// refuse leaves c lastWords, unless it is admitted. Another wrong proof does not prolong them.
func (t *table) refuse(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.to(refused) {
		c.deadline = time.Now().Add(lastWords)
	}
}

// setSecrets replaces the secrets, and returns the connections that have proved one which is gone.
func (t *table) setSecrets(secrets []join.Secret) (gone []*conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.secrets = secrets
	for _, of := range t.peers {
		for _, c := range slices.Clone(of.conns) {
			if c.proved() && !slices.Contains(secrets, c.secret) {
				t.leave(c)
				gone = append(gone, c)
			}
		}
	}
	return gone
}

// of are p's connections, nil if it has none.
func (t *table) of(p peer.ID) *connsOf {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.peers[p]
}

// empty reports whether the last of a peer's connections has ended.
func (t *table) empty(of *connsOf) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(of.conns) == 0
}

// from is the address of p's latest connection.
func (t *table) from(p peer.ID) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if of := t.peers[p]; of != nil {
		return of.conns[len(of.conns)-1].address()
	}
	return ""
}

// known reports whether members have come from an address.
func (t *table) known(prefix netip.Prefix) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.homes.Has(prefix)
}

// load returns the number of slots for handshakes, and how many are taken.
func (t *table) load() (all, taken int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.handshakes.Slots(), t.handshakes.Len()
}
