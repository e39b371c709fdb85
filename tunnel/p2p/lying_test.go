package p2p

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/test/fair"
	"edgemesh/test/relaytest"
	"edgemesh/tunnel/p2p/base/stun"
	"edgemesh/tunnel/p2p/carrier/sealed"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/members"
)

// lie gets what a relay forwards, and sends what it likes to whom it is for and to the others.
type lie func(b []byte, send func([]byte), others []func([]byte))

// liar stands before a relay's UDP port, and makes of it a relay that lies. All else passes.
type liar struct {
	front *net.UDPConn
	relay *net.UDPAddr
	lie   atomic.Pointer[lie]
	done  sync.WaitGroup

	mu   sync.Mutex // guards the rest
	back map[netip.AddrPort]*net.UDPConn
}

// newLiar returns one, and where the relay is reached through it.
func newLiar(t *testing.T, relay peer.AddrInfo) (*liar, peer.AddrInfo) {
	t.Helper()
	l := &liar{back: map[netip.AddrPort]*net.UDPConn{}}
	through := peer.AddrInfo{ID: relay.ID}
	for _, a := range relay.Addrs {
		port, err := a.ValueForProtocol(ma.P_UDP)
		if err != nil {
			through.Addrs = append(through.Addrs, a)
			continue
		}
		if l.relay, err = net.ResolveUDPAddr("udp4", "127.0.0.1:"+port); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if l.front, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}); err != nil {
		t.Fatal(err)
	}
	through.Addrs = append(through.Addrs, ma.StringCast(fmt.Sprintf("/ip4/127.0.0.1/udp/%d/quic-v1", l.front.LocalAddr().(*net.UDPAddr).Port)))
	l.done.Go(l.out)
	t.Cleanup(func() {
		l.front.Close()
		l.mu.Lock()
		for _, c := range l.back {
			c.Close()
		}
		l.mu.Unlock()
		l.done.Wait()
	})
	return l, through
}

// out passes on what members send.
func (l *liar) out() {
	b := make([]byte, 64<<10)
	for {
		n, from, err := l.front.ReadFromUDPAddrPort(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		l.mu.Lock()
		c := l.back[from]
		if c == nil && err == nil {
			if c, err = net.DialUDP("udp4", nil, l.relay); err == nil {
				l.back[from] = c
				l.done.Go(func() { l.in(c, from) })
			}
		}
		l.mu.Unlock()
		if c != nil {
			_, _ = c.Write(b[:n])
		}
	}
}

// in passes on what the relay sends to one member.
func (l *liar) in(c *net.UDPConn, to netip.AddrPort) {
	send := func(b []byte) { _, _ = l.front.WriteToUDPAddrPort(b, to) }
	b := make([]byte, 64<<10)
	for {
		n, err := c.Read(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		tell := l.lie.Load()
		if err != nil || tell == nil || !sealed.Is(b[:n]) || stun.Is(b[:n]) {
			send(b[:n])
			continue
		}
		(*tell)(bytes.Clone(b[:n]), send, l.others(to))
	}
}

// others send to all members but one.
func (l *liar) others(than netip.AddrPort) (out []func([]byte)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at := range l.back {
		if at != than {
			out = append(out, func(b []byte) { _, _ = l.front.WriteToUDPAddrPort(b, at) })
		}
	}
	return out
}

// A relay that doubles, delays, swaps, changes or sends to the wrong member what it forwards: nothing is delivered twice, changed or
// to another one, and what is dropped is counted.
func TestLyingRelay(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	l, through := newLiar(t, relay)
	var keys []members.Member
	var nodes []*Node
	m := members.Membership{Relays: []peer.AddrInfo{through}, ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
	in := map[*Node]*collector{}
	for range 3 {
		key := newKey(t)
		keys = append(keys, members.Member{Name: string(rune('a' + len(keys))), ID: idOf(t, key)})
		m.Members = slices.Clone(keys)
		n := circuitNode(t, key, m)
		nodes, in[n] = append(nodes, n), take(n)
	}
	for _, n := range nodes {
		n.SetMembership(m)
	}
	a, b, c := nodes[0], nodes[1], nodes[2]
	for _, n := range nodes {
		fair.Eventually(t, 10*time.Second, "reservations", reserved(n, 1))
	}
	ab, cb := circuitStream(t, a, b.ID()), circuitStream(t, c, b.ID()) // c has a socket and sessions, too
	for n, s := range map[*Node]*paths.Stream{a: ab, c: cb} {
		fair.Eventually(t, 10*time.Second, "forwarded packets", hasDatagrams(in[n], s, b.ID(), 1000))
	}
	const count, enough = 200, 20
	datagram := func(round, i int) []byte {
		d := bytes.Repeat([]byte{byte(i)}, 300)
		d[0] = 1
		binary.BigEndian.PutUint32(d[1:], uint32(round)<<16|uint32(i))
		return d
	}
	var mu sync.Mutex // of the lies' state
	var held []func()
	release := func() {
		for _, send := range slices.Backward(held) {
			send()
		}
		held = nil
	}
	changed, doubled := 0, 0
	for round, x := range []struct {
		name   string
		lie    lie
		loses  bool
		why    []string
		counts func() int // at least
	}{
		{"doubles", func(p []byte, send func([]byte), _ []func([]byte)) {
			mu.Lock()
			doubled++
			mu.Unlock()
			send(p)
			send(p)
		}, false,
			[]string{"flight_repeated"}, func() int { return doubled }},
		{"delays", func(p []byte, send func([]byte), _ []func([]byte)) {
			if p[len(p)-1]&1 == 0 { // the tag is as good as random
				time.AfterFunc(200*time.Millisecond, func() { send(p) })
				return
			}
			send(p)
		}, false, nil, nil},
		{"swaps", func(p []byte, send func([]byte), _ []func([]byte)) {
			if len(p) < 300 { // an ACK, or an answer
				send(p)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if held = append(held, func() { send(p) }); len(held) == 2 {
				release()
				return
			}
			time.AfterFunc(50*time.Millisecond, func() { mu.Lock(); defer mu.Unlock(); release() })
		}, false, nil, nil},
		{"sends to others, too", func(p []byte, send func([]byte), others []func([]byte)) {
			send(p)
			for _, other := range others {
				other(p)
			}
		}, false, []string{"packet_unknown_session", "packet_forged"}, func() int { return count }},
		{"changes a bit", func(p []byte, send func([]byte), _ []func([]byte)) {
			mu.Lock()
			defer mu.Unlock()
			if len(p) >= 300 && rand.IntN(3) == 0 {
				changed++
				if i := rand.IntN(len(p)); i == 0 {
					p[0] ^= 1 << rand.IntN(6) // the other two say that it is sealed
				} else {
					p[i] ^= 1 << rand.IntN(8)
				}
			}
			send(p)
		}, true, []string{"packet_forged", "packet_unknown_session"}, func() int { return changed }},
	} {
		t.Run(strings.ReplaceAll(x.name, ",", ""), func(t *testing.T) {
			refused := func() (n uint64) {
				for _, who := range nodes {
					for _, why := range x.why {
						n += who.Refused()[why]
					}
				}
				return n
			}
			before := refused()
			l.lie.Store(&x.lie)
			defer l.lie.Store(nil)
			want := map[string]int{}
			for i := range count {
				d := datagram(round, i)
				err := in[a].put(b.ID(), d)
				if x.loses && i >= enough && errors.Is(err, errNoLanes) {
					break // losses of large packets alone look like a hole
				}
				if err != nil {
					t.Fatalf("datagram %d: %v", i, err)
				}
				want[string(d)] = 0
				time.Sleep(time.Millisecond) // sleep: the rate of datagrams
			}
			missing := 0
			received := func() error {
				for d := range want {
					want[d] = 0
				}
				missing = len(want)
				got, _, _ := in[b].snapshot()
				for _, d := range got {
					if len(d) == 300 && int(binary.BigEndian.Uint32(d[1:])>>16) != round {
						continue // of another lie
					}
					n, sent := want[string(d)]
					if !sent || n > 0 {
						t.Fatalf("%d bytes are delivered that were sent: %v, delivered before: %v", len(d), sent, n > 0)
					}
					want[string(d)]++
					missing--
				}
				if missing > 0 && !x.loses {
					return fmt.Errorf("%d of %d are missing", missing, len(want))
				}
				return nil
			}
			fair.Eventually(t, 5*time.Second, "all of them arrive", received)
			time.Sleep(50 * time.Millisecond) // sleep: none comes twice
			if err := received(); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if x.counts != nil && refused()-before < uint64(x.counts()) {
				t.Errorf("%d packets are counted as dropped, want %d", refused()-before, x.counts())
			}
			if x.loses && (missing == 0 || missing > 2*changed) { // a probe of the size may be among those that were changed, and a packet may have two
				t.Errorf("%d of %d are missing, %d were changed", missing, len(want), changed)
			}
			for _, n := range []*Node{a, c} {
				if got, _, _ := in[n].snapshot(); len(got) > 0 {
					t.Errorf("%d datagrams for b are delivered to another one", len(got))
				}
			}
		})
	}
}
