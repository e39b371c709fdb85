package p2p

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/members"
)

// The DHT dials members by itself, at addresses that anybody may have told it.
func TestRubbishInTheDHTIsNotDialed(t *testing.T) {
	member, relay, both := idOf(t, newKey(t)), idOf(t, newKey(t)), idOf(t, newKey(t))
	n, err := New(Config{Key: newKey(t), Listen: addrs(t, "/ip4/0.0.0.0/tcp/0", "/ip4/0.0.0.0/udp/0/quic-v1"), Membership: members.Membership{
		Members: []members.Member{{Name: "b", ID: member}, {Name: "c", ID: both}}, Relays: []peer.AddrInfo{{ID: relay}, {ID: both}},
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	for _, c := range []struct {
		p    peer.ID
		addr string
		want bool
	}{
		{member, "/ip4/5.5.1.1/tcp/4001", true}, {member, "/ip4/192.168.77.1/udp/4001/quic-v1", true},
		{member, "/ip4/127.0.0.1/tcp/4001", false}, {member, "/ip6/::1/udp/4001/quic-v1", false},
		{member, "/ip4/169.254.169.254/tcp/80", false}, {member, "/ip6/fe80::1/tcp/4001", false},
		{member, "/ip4/224.0.0.1/udp/4001/quic-v1", false}, {member, "/ip4/10.244.1.1/tcp/4001", false},
		{member, "/ip4/168.63.129.16/tcp/4001", false}, {member, "/ip6/fd00:ec2::254/tcp/4001", false},
		{relay, "/ip4/127.0.0.1/tcp/4001", true}, // as the operator wrote
		// A member that is a relay says itself where it is.
		{both, "/ip4/5.5.1.1/tcp/443/ws", true}, {both, "/ip4/127.0.0.1/tcp/4001", false}, {both, "/ip4/127.0.0.1/tcp/443/ws", false},
		{both, "/ip4/169.254.169.254/tcp/80/ws", false}, {both, "/ip4/10.244.1.1/tcp/4001", false},
	} {
		a := addrs(t, c.addr)[0]
		if got := n.gater.MayDial(c.p, a); got != c.want {
			t.Errorf("%s of the member or relay may be dialed: %v, want %v", c.addr, got, c.want)
		}
		if got := n.gater.InterceptAddrDial(c.p, a); got != (c.p == relay) {
			t.Errorf("%s of the member or relay is dialed by the swarm, which knows nothing of it: %v", c.addr, got)
		}
	}
}

// goroutines is how many there are once none begins or ends.
func goroutines(t *testing.T) int {
	t.Helper()
	n := 0
	fair.Eventually(t, 10*time.Second, "a steady number of goroutines", func() error {
		before := runtime.NumGoroutine()
		time.Sleep(200 * time.Millisecond) // sleep: none begins or ends meanwhile
		if n = runtime.NumGoroutine(); n != before {
			return fmt.Errorf("%d, a moment ago %d", n, before)
		}
		return nil
	})
	return n
}

// Hundreds ask all the time for a peer that is nowhere: nobody is blocked, little is
// done, and nothing is left of it.
func TestFloodOfDials(t *testing.T) {
	key, other := newKey(t), newKey(t)
	n := loopbackNode(t, key, members.Membership{Members: []members.Member{{Name: "a", ID: idOf(t, key)}, {Name: "b", ID: idOf(t, other)}}})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	before := goroutines(t)
	var calls atomic.Int64
	var wg sync.WaitGroup
	for range 300 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if s, err := n.OpenStream(ctx, idOf(t, other), echoProto); err == nil {
					s.Reset()
					t.Error("a stream to nobody")
				}
				calls.Add(1)
			}
		})
	}
	wg.Wait()
	st, _ := n.PeerStatus(idOf(t, other))
	rounds := st.Rounds
	t.Logf("%d calls, %d rounds", calls.Load(), rounds)
	if rounds > 20 {
		t.Errorf("%d rounds of dialing in 3 s, want at most 20", rounds)
	}
	fair.Eventually(t, 5*time.Second, "the flood leaves nothing", func() error {
		if now := runtime.NumGoroutine(); now > before+5 {
			return fmt.Errorf("%d goroutines, before %d", now, before)
		}
		return nil
	})
}

// Two sites use the same addresses: behind the address of the peer stands another
// node. That is found out once, not with every attempt.
func TestStrangerAtThePeersAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.site(1, natSymmetric, 2)
	w.site(2, natKeep, 2) // such a pair is not given up after two attempts
	// a and the stranger at site 1; b, at site 2, has the stranger's address and port.
	c := w.configure(w.host(1, 1), w.host(1, 2), w.host(2, 2))
	c.ports = []int{4001, 4002, 4002}
	c.startRelay()
	var nodes []*process
	for i := range c.names {
		nodes = append(nodes, c.startNode(i))
	}
	a, b := nodes[0], nodes[2]
	stranger := w.host(1, 2)
	w.in(stranger, "iptables -A INPUT -p tcp --dport 4002 --syn", "iptables -A INPUT -p udp --dport 4002 -s 192.168.1.10")
	attempts := func(n int) {
		t.Helper()
		fair.Eventually(t, 40*time.Second, fmt.Sprintf("attempt %d is over", n), func() error {
			a.call(b)
			// Only one of the two begins attempts, and counts them.
			if logs := a.log.String() + b.log.String(); !strings.Contains(logs, fmt.Sprintf("msg=punch peer=%s attempt=%d ", a.name, n)) &&
				!strings.Contains(logs, fmt.Sprintf("msg=punch peer=%s attempt=%d ", b.name, n)) {
				return errors.New("not yet")
			}
			return nil
		})
	}
	attempts(0)
	tcp, udp := w.counted(stranger, "tcp"), w.counted(stranger, "udp")
	// One handshake over QUIC has some packets, more on a slow machine; SYNs can be counted.
	if tcp != 1 || udp == 0 {
		t.Errorf("the first attempt sent the stranger %d SYNs, want 1, and %d UDP packets, want some", tcp, udp)
	}
	attempts(2)
	if n := w.counted(stranger, "tcp"); n != tcp {
		t.Errorf("the stranger was dialed %d times more over TCP", n-tcp)
	}
	if n := w.counted(stranger, "udp"); n != udp {
		t.Errorf("the stranger got %d UDP packets more", n-udp)
	}
	if st := a.ask(request{Cmd: "status", Peer: b.id.String()}).Peer; st.Path.Kind != paths.KindRelayed {
		t.Errorf("path %+v", st.Path)
	}
}

// counted is how many packets a rule without a target in chain INPUT has seen.
func (w *world) counted(host, proto string) int {
	w.t.Helper()
	out, err := exec.Command("ip", "netns", "exec", w.ns(host), "iptables", "-nvxL", "INPUT").CombinedOutput()
	if err != nil {
		w.t.Fatal(err)
	}
	number := map[string]string{"tcp": "6", "udp": "17"}[proto]
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 3 && (f[2] == proto || f[2] == number) {
			n, err := strconv.Atoi(f[0])
			if err != nil {
				w.t.Fatal(err)
			}
			return n
		}
	}
	w.t.Fatalf("no rule for %s in %s", proto, out)
	return 0
}
