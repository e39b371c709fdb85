package gate

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/admission/join"
	"edgemesh/tunnel/p2p/who/refusals"
)

// No state but those that are drawn follows another.
func TestStates(t *testing.T) {
	all := []state{handshaking, waiting, asking, admitted, refused, closed}
	drawn := map[state][]state{
		handshaking: {waiting, admitted, closed}, waiting: {asking, admitted, closed}, asking: {admitted, refused, closed},
		refused: {admitted, closed}, admitted: {closed},
	}
	for _, from := range all {
		for _, to := range all {
			released := 0
			c := &conn{state: from, release: func() { released++ }}
			may := slices.Contains(drawn[from], to)
			if got := c.to(to); got != may || (c.state == to) != (may || from == to) {
				t.Errorf("%d → %d: %t, then %d", from, to, got, c.state)
			}
			if frees := may && (from == handshaking || to == admitted || to == closed); (released == 1) != frees {
				t.Errorf("%d → %d: the slot is given back %d times", from, to, released)
			}
		}
	}
}

// swarmConn is a connection of a swarm, without one.
type swarmConn struct {
	network.Conn
	scope  network.ConnManagementScope
	peer   peer.ID
	addr   ma.Multiaddr
	closed atomic.Bool
}

func (c *swarmConn) RemotePeer() peer.ID           { return c.peer }
func (c *swarmConn) RemoteMultiaddr() ma.Multiaddr { return c.addr }
func (c *swarmConn) IsClosed() bool                { return c.closed.Load() }
func (c *swarmConn) Scope() network.ConnScope      { return c.scope }
func (c *swarmConn) Close() error {
	c.closed.Store(true)
	c.scope.Done()
	return nil
}

// arrive has a stranger's connection arrive; nil if it has no slot.
func arrive(g *Gate, p peer.ID, ip string, port int) *swarmConn {
	c := &swarmConn{peer: p, addr: ma.StringCast(fmt.Sprintf("/ip4/%s/tcp/%d", ip, port))}
	var err error
	if c.scope, err = g.OpenConnection(network.DirInbound, true, c.addr); err != nil {
		return nil
	}
	if c.scope.SetPeer(p) != nil || !g.connected(c) {
		c.scope.Done()
		return nil
	}
	return c
}

func stateOf(c *swarmConn) *conn { return c.scope.(*scope).conn }

// prove has c prove s.
func prove(g *Gate, c *swarmConn, s join.Secret) {
	g.table.verify(stateOf(c))
	g.table.verified(stateOf(c), c, s)
}

// waits reports whether a connection of p waits to be admitted.
func (g *Gate) waits(p peer.ID) bool {
	g.table.mu.Lock()
	defer g.table.mu.Unlock()
	of := g.table.peers[p]
	return of != nil && slices.ContainsFunc(of.conns, func(c *conn) bool { return c.pending() })
}

// withPolicy is a gate with a policy; members lists the others, and book counts refusals.
func withPolicy(policy *Policy, members ...peer.ID) (g *Gate, book *refusals.Book) {
	book = refusals.New(slog.New(slog.DiscardHandler), nil)
	return New(&network.NullResourceManager{}, Config{Handshakes: 1000, Policy: policy, Refused: book.Refuse,
		IsMember: func(p peer.ID) bool { return slices.Contains(members, p) }}), book
}

func everybodyMayWait(peer.ID) Ruling { return MayWait }

// secretN is a secret of a test.
func secretN(t *testing.T, n int) join.Secret {
	t.Helper()
	path := filepath.Join(t.TempDir(), "join-secret")
	if err := os.WriteFile(path, []byte(fmt.Sprintf("secret-number-%04d-%s", n, strings.Repeat("x", 32))), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := join.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return s[0]
}

func total(book *refusals.Book) (n uint64) {
	for _, c := range book.Counts() {
		n += c
	}
	return n
}

// A connection's end takes no other's slot, even with the same peer and address, and without a slot there is no staying.
func TestSlotIsTheConnections(t *testing.T) {
	g, _ := withPolicy(Secret([]join.Secret{secretN(t, 1)}, everybodyMayWait))
	a, b := arrive(g, "p", "5.5.5.5", 1), arrive(g, "p", "5.5.5.5", 1)
	a.Close()
	stray := &swarmConn{peer: "p", addr: a.addr, scope: &network.NullScope{}} // not by the gate
	late := &swarmConn{peer: "p", addr: a.addr, scope: a.scope}
	if !g.waits("p") || !g.Stays(b) || g.Stays(stray) || g.Stays(late) || g.connected(stray) || g.connected(late) {
		t.Error("want that b waits, and that the others do not stay")
	}
	if g.TakeCircuit("p") {
		t.Error("where the secret is proved nobody has a circuit to a controller")
	}
	unproved := arrive(g, "p", "5.5.5.5", 1)
	prove(g, b, secretN(t, 1))
	if !g.Admits("p") || !g.Stays(b) || !g.Stays(unproved) {
		t.Error("b has proved the secret, and the other one still may")
	}
	g.sweep(time.Now().Add(2 * join.Patience))
	g.closing.wait()
	if !g.Admits("p") || b.IsClosed() || !unproved.IsClosed() {
		t.Error("the connection that proved nothing itself stays, or the other one does not")
	}
	b.Close()
	left(t, g)
}

// However many connections strangers have, another address gets a slot and keeps it, and so do peers that were in before.
func TestSlotsAreShared(t *testing.T) {
	policy := Secret([]join.Secret{secretN(t, 1)}, everybodyMayWait)
	for _, hosts := range []int{1, 200, 2000} {
		t.Run(fmt.Sprint(hosts, " hosts"), func(t *testing.T) {
			g, book := withPolicy(policy)
			flood := func(from, to int) {
				for i := from; i < to; i++ {
					arrive(g, peer.ID(fmt.Sprint("stranger ", i)), fmt.Sprintf("127.9.%d.%d", i%hosts/250, 1+i%hosts%250), 10000+i%50000)
				}
			}
			flood(0, 5000)
			if hosts > policy.slots {
				time.Sleep(policy.stay/leastPart + 10*time.Millisecond) // sleep: none of them has more than one slot
			}
			c := arrive(g, "member", "5.5.5.6", 1)
			if c == nil {
				t.Fatal("a peer at another address has no slot")
			}
			flood(5000, 5300) // while it proves the secret
			if n := g.table.elsewhere.Len(); n != policy.slots || total(book) != uint64(5301-policy.slots) || !g.waits("member") {
				t.Fatalf("%d of %d slots are taken, %d are refused, the member waits: %v", n, policy.slots, total(book), g.waits("member"))
			}
			prove(g, c, secretN(t, 1))
			flood(6000, 12000)
			for i := range policy.homeSlots {
				if arrive(g, peer.ID(fmt.Sprint("neighbour ", i)), "5.5.5.6", 100+i) == nil {
					t.Fatalf("peer %d from a member's address has no slot", i)
				}
			}
			for i := range policy.perPeer + 1 {
				if got := arrive(g, "member", "127.9.0.1", 100+i); (got != nil) != (i < policy.perPeer) {
					t.Errorf("connection %d of a peer that was in before: %v", i, got)
				}
			}
			c.Close()
			g.sweep(time.Now().Add(2 * policy.stay))
			g.closing.wait()
			left(t, g)
			if n, m := g.table.elsewhere.Len(), g.table.home.Len(); n+m != 0 {
				t.Errorf("left behind: %d strangers, %d at home", n, m)
			}
		})
	}
}

// One address takes its share of the slots for those who ask a controller, and another still gets in.
func TestControllersSlotsAreShared(t *testing.T) {
	g, book := withPolicy(Controllers(everybodyMayWait))
	n := 0
	for i := range 300 {
		if arrive(g, peer.ID(fmt.Sprint("x", i)), "5.5.5.5", 1) != nil {
			n++
		}
	}
	if n != 32 || book.Counts()["too many strangers"] != uint64(300-n) {
		t.Errorf("one address has %d slots, refused: %v", n, book.Counts())
	}
	for i := range 300 {
		if arrive(g, "y", fmt.Sprint("5.6.1.", i%10), 1) == nil && i < 10 {
			t.Errorf("address %d has no slot", i)
		}
	}
	if arrive(g, "z", "5.7.7.7", 1) == nil {
		t.Error("a new address has no slot when all are taken")
	}
	if got := g.table.elsewhere.Len(); got != 256 {
		t.Errorf("%d slots are taken", got)
	}
}

// Each connection asks once; after its time it is closed unless the membership lists its peer by then.
func TestAskOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listed := false
		g, book := withPolicy(Controllers(everybodyMayWait))
		g.table.isMember = func(p peer.ID) bool { return listed && p == "edge" }
		a, other := arrive(g, "edge", "5.5.5.5", 1), arrive(g, "other", "5.5.5.5", 1)
		for i, want := range []bool{true, false} {
			if g.TakeCircuit("edge") != want {
				t.Errorf("circuit %d: %t", i, !want)
			}
		}
		if b := arrive(g, "edge", "5.5.5.5", 2); b == nil || !g.TakeCircuit("edge") || g.TakeCircuit("edge") {
			t.Error("a second connection has no circuit of its own, or two")
		}
		if g.TakeCircuit("nobody") {
			t.Error("a circuit of nobody")
		}
		listed = true
		time.Sleep(20*time.Second - 1)
		g.sweep(time.Now())
		if other.IsClosed() {
			t.Error("closed before its time")
		}
		time.Sleep(time.Nanosecond)
		g.sweep(time.Now())
		g.closing.wait()
		if !other.IsClosed() || a.IsClosed() || len(g.table.pending) != 0 || total(book) != 0 {
			t.Errorf("other closed %t, listed one closed %t, %d wait, refused %v", other.IsClosed(), a.IsClosed(), len(g.table.pending), book.Counts())
		}
	})
}

// Whoever is banned, or left to the connection gater, takes no slot.
func TestRulings(t *testing.T) {
	ruling := MayWait
	g, book := withPolicy(Secret(nil, func(peer.ID) Ruling { return ruling }), "member")
	in := arrive(g, "p", "5.5.5.5", 1)
	prove(g, in, secretN(t, 1))
	if !g.Decides("p") || g.Decides("member") || !g.Stays(in) {
		t.Error("the gate decides about strangers only")
	}
	ruling = Banned
	if g.Admits("p") || g.Stays(in) || g.Proved() != 0 {
		t.Error("banned, and still in")
	}
	if arrive(g, "q", "5.5.5.6", 1) != nil || book.Counts()[refusals.Banned] != 1 {
		t.Errorf("a banned peer waits, or is not counted: %v", book.Counts())
	}
	if ruling = LeftToGater; g.Decides("q") {
		t.Error("the gate decides what is the gater's")
	}
	c, err := g.OpenConnection(network.DirInbound, true, ma.StringCast("/ip4/5.5.5.7/tcp/1"))
	if err != nil || c.SetPeer("q") != nil {
		t.Fatal("the gater is not asked", err)
	}
	nc := &swarmConn{peer: "q", scope: c}
	if g.waits("q") || g.connected(nc) || g.serves("q") {
		t.Error("nobody admitted it")
	}
	nc.Close()
	in.Close()
	left(t, g)
}

// A member's connection that is lost before its proof is counted only if there was time for one.
func TestLeavesUnproved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, book := withPolicy(Secret(nil, everybodyMayWait))
		quick, slow := arrive(g, "quick", "5.5.5.5", 1), arrive(g, "slow", "5.5.5.5", 2)
		quick.Close()
		time.Sleep(enough)
		slow.Close()
		if n := book.Counts()[refusals.NoSecret]; n != 1 {
			t.Errorf("%d are counted, want 1", n)
		}
		told := arrive(g, "told", "5.5.5.5", 3)
		g.table.verify(stateOf(told))
		g.table.refuse(stateOf(told))
		time.Sleep(lastWords - 1)
		if g.sweep(time.Now()); told.IsClosed() {
			t.Error("closed before it could read the verdict")
		}
		time.Sleep(time.Nanosecond)
		g.sweep(time.Now())
		g.closing.wait()
		if counts := book.Counts(); !told.IsClosed() || counts[refusals.NoSecret] != 1 {
			t.Errorf("closed %t, counted %v", told.IsClosed(), counts)
		}
		left(t, g)
	})
}

// One wrong proof after the other gains no time.
func TestWrongProofsDoNotStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := withPolicy(Secret(nil, everybodyMayWait))
		c := arrive(g, "p", "5.5.5.5", 1)
		for range 10 {
			g.table.verify(stateOf(c))
			g.table.refuse(stateOf(c))
			time.Sleep(lastWords * 9 / 10)
			g.sweep(time.Now())
		}
		g.closing.wait()
		if !c.IsClosed() {
			t.Error("it stays by wrong proofs")
		}
		left(t, g)
	})
}

// A proof of a secret that was replaced while it was under way does not hold.
func TestSecretReplacedDuringTheProof(t *testing.T) {
	old := secretN(t, 1)
	g, _ := withPolicy(Secret([]join.Secret{old}, everybodyMayWait))
	c := arrive(g, "p", "5.5.5.5", 1)
	if got := g.table.verify(stateOf(c)); !slices.Contains(got, old) {
		t.Fatal("the secret is not among those that may be proved")
	}
	g.SetSecrets([]join.Secret{secretN(t, 2)})
	if why := g.table.verified(stateOf(c), c, old); why != refusals.WrongSecret || g.Admits("p") {
		t.Error("admitted by a secret that is gone")
	}
	if g.table.verify(stateOf(c)); g.table.verified(stateOf(c), c, secretN(t, 2)) != "" || !g.Admits("p") {
		t.Error("not admitted by the new secret")
	}
	c.Close()
	left(t, g)
}

// Who knows a secret makes as many keys as it likes: those of one address leave connections to others. Listed members have theirs beside.
func TestManyKeysOfOneAddress(t *testing.T) {
	s := secretN(t, 1)
	g, _ := withPolicy(Secret([]join.Secret{s}, everybodyMayWait), "listed")
	g.table.mostProved = 40
	var all []*swarmConn
	proves := func(p peer.ID, ip string, port int) bool {
		c := arrive(g, p, ip, port)
		if c == nil {
			t.Fatalf("%s has no slot", p)
		}
		if prove(g, c, s); !g.Admits(p) {
			c.Close()
			return false
		}
		all = append(all, c)
		return true
	}
	for i := range 100 {
		if got := proves(peer.ID(fmt.Sprint("key", i)), "5.5.5.5", i+1); got != (i < 30) {
			t.Errorf("key %d: admitted %t", i, got)
		}
	}
	for i := range 4 {
		if !proves(peer.ID(fmt.Sprint("honest", i)), "5.5.6.6", i+1) {
			t.Errorf("node %d of another address is not admitted", i)
		}
	}
	all = append(all, arrive(g, "listed", "5.5.5.5", 1000))
	if prove(g, all[len(all)-1], s); g.table.allProved != 34 {
		t.Errorf("%d are counted", g.table.allProved)
	}
	for _, c := range all {
		c.Close()
	}
	if left(t, g); g.table.allProved+len(g.table.provedAt) != 0 {
		t.Errorf("left behind: %d, %v", g.table.allProved, g.table.provedAt)
	}
	if !proves("next", "5.5.5.5", 1) {
		t.Error("not admitted when all have left")
	}
}

// A displaced connection that the swarm does not have yet is not taken when it comes.
func TestDisplacedBeforeTheSwarm(t *testing.T) {
	policy := Secret(nil, everybodyMayWait)
	policy.slots, policy.stay = 1, leastPart // of no time
	g, book := withPolicy(policy)
	first := &swarmConn{peer: "first", addr: ma.StringCast("/ip4/5.5.5.5/tcp/1")}
	var err error
	if first.scope, err = g.OpenConnection(network.DirInbound, true, first.addr); err != nil || first.scope.SetPeer("first") != nil {
		t.Fatal("no slot", err)
	}
	second := arrive(g, "second", "5.5.5.6", 1)
	if second == nil || g.connected(first) || book.Counts()[refusals.Unproved] != 1 {
		t.Errorf("second %v, refused %v", second, book.Counts())
	}
	first.Close()
	second.Close()
	left(t, g)
}

// A statement is taken, and its peer is not a member by then: the connection is not admitted. An edge that shows none reaches a controller soon.
func TestShownIsNotListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := withPolicy(Statement(400, nil, everybodyMayWait))
		defer g.Close()
		c := arrive(g, "left", "5.5.5.5", 1)
		g.table.asks(stateOf(c))
		if g.table.list("left"); stateOf(c).state != asking {
			t.Errorf("state %d", stateOf(c).state)
		}
		begun := time.Now()
		s := stream{&network.NullScope{}, g, "left"}
		if err := s.SetProtocol(proto.ProtoIDv2Hop); err != nil || time.Since(begun) > enough {
			t.Errorf("%v, after %v", err, time.Since(begun))
		}
		if err := s.SetProtocol("other"); err == nil || time.Since(begun) > enough+g.cfg.Policy.hold {
			t.Errorf("%v, after %v", err, time.Since(begun))
		}
		_ = c.Close()
	})
}
