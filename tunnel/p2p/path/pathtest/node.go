package pathtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	pb "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/carrier/dialer"
	"edgemesh/tunnel/p2p/carrier/packet"
	"edgemesh/tunnel/p2p/nat/punch"
	"edgemesh/tunnel/p2p/nat/sense"
	"edgemesh/tunnel/p2p/nat/targets"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/peers"
	"edgemesh/tunnel/p2p/path/reach"
	"edgemesh/tunnel/p2p/relay/relays/choice"
	"edgemesh/tunnel/p2p/who/members"
)

const (
	port = 4001
	// hopPatience is how long a hung relay takes to be given up.
	hopPatience = 2500 * time.Millisecond
)

// Node is one node.
type Node struct {
	ID    peer.ID
	Name  string
	Table *peers.Table
	Gater *members.Gater
	// Translated says that the node does not own the address at which it is seen, Mapped that a router has mapped its
	// port for TCP there. Between two translated nodes direct paths count as punched.
	Translated, Mapped atomic.Bool
	Dials              atomic.Int64 // how many were begun

	off, forgotten atomic.Bool

	world  *World
	cancel context.CancelFunc

	spawn  sync.Mutex // orders what begins and the end
	closed bool
	wg     sync.WaitGroup

	addr netip.Addr // guarded by World.mu

	mu     sync.Mutex // a leaf
	events []peers.Event
}

func newNode(w *World, m members.Member, all members.Membership, addr netip.Addr) *Node {
	n := &Node{ID: m.ID, Name: m.Name, world: w, addr: addr, Gater: members.NewGater(members.NewView(m.ID, all), members.Rules{})}
	var ctx context.Context
	ctx, n.cancel = context.WithCancel(context.Background())
	start, log := time.Now(), testLog(w.t, m.Name)
	now := func() time.Duration { return time.Hour + time.Since(start) }
	yes := func(netip.Addr) bool { return true }
	guard := targets.New(targets.Config{Near: func(netip.Addr) bool { return false }, Public: yes, Now: now, Log: log,
		Name:    func(p peer.ID) string { return n.Gater.View().Name(p) },
		Witness: func(_ context.Context, p peer.ID) [][]endpoint.Endpoint { return w.witness(p) }})
	none := func() []endpoint.Endpoint { return nil }
	puncher := punch.New(punch.Config{Dialer: n, Addrs: n, Sense: n, ViaNAT64: func(context.Context) bool { return false },
		Seen:   func() ([]endpoint.Endpoint, bool) { return n.Local(), false },
		Mapped: none, Targets: guard, Ctx: ctx, Spawn: n.Spawn, Now: now, Log: log})
	packets := packet.New(packet.Config{Self: m.ID, Spawn: n.Spawn, Log: log})
	n.Table = peers.New(peers.Config{Self: m.ID, Members: n.Gater, Punch: puncher, Relays: n, Carried: wake.NewOne(),
		Paths: paths.Config{Ctx: ctx, Spawn: n.Spawn, Owns: n.owns, Packets: packets, TCP: &dialer.Sockets{},
			Conns: func(peer.ID) []network.Conn { return nil }, SuspectRelay: n.Suspect, Log: log},
		Reach: &reach.Config{Self: m.ID, Dialer: n, Addrs: n, Relays: n, Candidates: n.candidates, DHT: n, Targets: guard, Ctx: ctx,
			Spawn: n.Spawn, Log: log},
		Metered: func() bool { return false }, Serves: func(peer.ID) bool { return false }, Ctx: ctx, Spawn: n.Spawn, Now: now, Log: log})
	n.Table.SetNotify(func(e peers.Event) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.events = append(n.events, e)
	})
	n.Table.Run()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes[m.ID] = n
	return n
}

// Spawn runs f in a goroutine that Close waits for; false: the node is closed.
func (n *Node) Spawn(f func()) bool {
	n.spawn.Lock()
	defer n.spawn.Unlock()
	if !n.closed {
		n.wg.Go(f)
	}
	return !n.closed
}

func (n *Node) close() {
	n.spawn.Lock()
	n.closed = true
	n.spawn.Unlock()
	n.cancel()
}

// Events returns what the node has said of its paths since the last call.
func (n *Node) Events() []peers.Event {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.events
	n.events = nil
	return all
}

// Path is the best path to another node.
func (n *Node) Path(to *Node) paths.Path {
	st, _ := n.Table.StatusOf(to.ID)
	return st.Path
}

// Use replaces the membership.
func (n *Node) Use(all ...*Node) {
	m := n.world.membership()
	for _, x := range all {
		m.Members = append(m.Members, members.Member{Name: x.Name, ID: x.ID})
	}
	v := members.NewView(n.ID, m)
	n.Gater.SetView(v)
	n.Table.Retain(v.IsMember)
}

// Move gives the node another address: what ran over the one before is dead, and the peers do not learn of it.
func (n *Node) Move(to netip.Addr) {
	n.world.mu.Lock()
	n.addr = to
	n.world.mu.Unlock()
	n.world.each(func(l *Link) bool { return l.ends[0].node == n || l.ends[1].node == n }, func(l *Link) { l.silent.Store(true) })
	n.Table.NetChanged()
}

// Cut ends this node's ends of all direct connections, as happens where the kernel refuses to send from an address that was deleted.
// The far ends hear nothing of it.
func (n *Node) Cut() {
	n.world.Silence()
	n.world.each(func(l *Link) bool { return l.relay == "" }, func(l *Link) {
		for _, c := range l.ends {
			if c.node == n {
				_ = c.Close()
			}
		}
	})
	time.Sleep(100 * time.Millisecond)
	n.Table.AddressGone()
}

// Power switches this node off, without a goodbye, or on. The relays keep the reservation of one that is off until they Forget it.
func (n *Node) Power(on bool) {
	n.off.Store(!on)
	n.forgotten.Store(false)
	n.world.each(func(l *Link) bool { return l.ends[0].node == n || l.ends[1].node == n }, func(l *Link) { l.silent.Store(!on) })
}

// Forget has the relays notice that this node is off.
func (n *Node) Forget() { n.forgotten.Store(true) }

// Flow is a stream whose far end sends back what it gets.
type Flow struct{ *paths.Stream }

// Ping sends a few bytes and takes the answer.
func (f *Flow) Ping() error {
	_ = f.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := f.Write([]byte("hello")); err != nil {
		return err //nolint:wrapcheck // it says all there is
	}
	_, err := io.ReadFull(f, make([]byte, 5))
	return err //nolint:wrapcheck // likewise
}

// Talk keeps a stream busy until d is over or the stream fails, and says how long that took.
func (f *Flow) Talk(d time.Duration) (time.Duration, error) {
	start := time.Now()
	for time.Since(start) < d {
		if err := f.Ping(); err != nil {
			return time.Since(start), err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return time.Since(start), nil
}

func (n *Node) here() netip.Addr {
	n.world.mu.Lock()
	defer n.world.mu.Unlock()
	return n.addr
}

func (n *Node) owns(e endpoint.Endpoint) bool {
	return e.Addr.Addr() == n.here() && (!n.Translated.Load() || n.Mapped.Load() && !e.UDP && e.Addr.Port() == port)
}

// What follows is the node as its dials see it.

// Dial makes a connection immediately, where the world lets it through.
func (n *Node) Dial(ctx context.Context, a ma.Multiaddr, p peer.ID) error {
	n.Dials.Add(1)
	if n.off.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if err := sleep(ctx, 2*n.world.Latency); err != nil {
		return err
	}
	if endpoint.IsCircuit(a) {
		return n.circuit(ctx, endpoint.RelayOf(a), a, p)
	}
	e, ok := endpoint.Parse(a)
	far := n.world.at(e)
	n.world.mu.Lock()
	blocked := n.world.blocked
	n.world.mu.Unlock()
	if !ok || blocked || far == nil || far.ID != p || far.off.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	n.world.connect(n, far, endpoint.Endpoint{UDP: e.UDP, Addr: netip.AddrPortFrom(n.here(), port)}.Multiaddr(), a, "")
	return nil
}

func (n *Node) circuit(ctx context.Context, relay peer.ID, a ma.Multiaddr, p peer.ID) error {
	r, state := n.world.find(relay)
	n.world.mu.Lock()
	far := n.world.nodes[p]
	n.world.mu.Unlock()
	switch {
	case state == Hung:
		return errors.Join(sleep(ctx, hopPatience), errors.New("the relay does not answer"))
	case state == Down || far == nil:
		return errors.New("NO_RESERVATION (204)")
	case far.forgotten.Load():
		return dialer.RefusedCircuit(pb.Status_NO_RESERVATION)
	case far.off.Load():
		return fmt.Errorf("no answer to a request for a circuit: %w", errors.Join(sleep(ctx, hopPatience), os.ErrDeadlineExceeded))
	}
	n.world.connect(n, far, endpoint.Circuit(r.ID, r.addr), a, relay)
	return nil
}

// DialFresh is Dial.
func (n *Node) DialFresh(ctx context.Context, e endpoint.Endpoint, p peer.ID) error {
	return n.Dial(ctx, e.Multiaddr(), p)
}

// DialFrom is not scripted: ports are not guessed.
func (n *Node) DialFrom(context.Context, endpoint.Endpoint, peer.ID, func(string, *net.UDPAddr) (net.PacketConn, error)) error {
	return errors.New("ports are not guessed")
}

// OpenNAT does nothing: there are no NATs.
func (n *Node) OpenNAT(context.Context, []endpoint.Endpoint) {}

// ListenAddrs are those of TCP and QUIC.
func (n *Node) ListenAddrs() (out []ma.Multiaddr) {
	for _, e := range n.Local() {
		out = append(out, e.Multiaddr())
	}
	return out
}

// ListeningUDP4 returns nil: no socket is there.
func (n *Node) ListeningUDP4() net.PacketConn { return nil }

// Local is where the node can be dialed.
func (n *Node) Local() []endpoint.Endpoint {
	at := netip.AddrPortFrom(n.here(), port)
	return []endpoint.Endpoint{{Addr: at}, {Addr: at, UDP: true}}
}

func (w *World) witness(p peer.ID) [][]endpoint.Endpoint {
	w.mu.Lock()
	n := w.nodes[p]
	w.mu.Unlock()
	if n == nil {
		return nil
	}
	return [][]endpoint.Endpoint{n.Local()}
}

// Dialable, Near and ReachesIPv6 are of a host in the middle of the internet, without IPv6.
func (n *Node) Dialable(endpoint.Endpoint) bool    { return true }
func (n *Node) Near(netip.Addr) bool               { return false }
func (n *Node) Owns(netip.Addr) bool               { return true }
func (n *Node) ReachesIPv6(endpoint.Endpoint) bool { return false }

// View says that there is no NAT, or one that keeps ports.
func (n *Node) View() sense.View {
	if n.Translated.Load() {
		return sense.View{Kind: ladder.NATStable}
	}
	return sense.View{Kind: ladder.NATNone}
}

// Predict foresees nothing.
func (n *Node) Predict(context.Context) []netip.AddrPort { return nil }

// What follows is the node as one that uses relays.

// Infos are all relays.
func (n *Node) Infos() []peer.AddrInfo { return n.world.membership().Relays }

// Position is a relay's place among them.
func (n *Node) Position(relay peer.ID) int {
	for i, r := range n.Infos() {
		if r.ID == relay {
			return i + 1
		}
	}
	return 100
}

// AwaitAny does not wait.
func (n *Node) AwaitAny(context.Context, time.Duration) {}

// Connect returns where a relay is connected.
func (n *Node) Connect(_ context.Context, relay peer.ID) (ma.Multiaddr, error) {
	r, state := n.world.find(relay)
	if state == Down {
		return nil, fmt.Errorf("relay %s is not connected", relay)
	}
	return r.addr, nil
}

// Visit, Suspect and SuspectAll do nothing: relays are what the script says.
func (n *Node) Visit(context.Context, peer.ID) {}
func (n *Node) Suspect(peer.ID)                {}
func (n *Node) SuspectAll()                    {}

// Wants says that no member is a relay.
func (n *Node) Wants(peer.ID) bool { return false }

// OverTCP are all relays.
func (n *Node) OverTCP() map[peer.ID]bool {
	out := make(map[peer.ID]bool)
	for _, r := range n.Infos() {
		out[r.ID] = true
	}
	return out
}

// candidates are all relays, the first ones the nearest.
func (n *Node) candidates(peer.ID) (out []choice.Candidate) {
	for i, r := range n.Infos() {
		_, state := n.world.find(r.ID)
		out = append(out, choice.Candidate{Relay: r.ID, Connected: state != Down, Mine: true, Theirs: true, Known: true,
			Cost: time.Duration(i+1) * 10 * time.Millisecond})
	}
	return out
}

// FindPeer is a DHT that knows nobody.
func (n *Node) FindPeer(ctx context.Context, _ peer.ID) (peer.AddrInfo, error) {
	return peer.AddrInfo{}, errors.Join(sleep(ctx, 100*time.Millisecond), errors.New("not found"))
}

// Close is the DHT's.
func (n *Node) Close() error { return nil }
