package p2p

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/test/fair"
	"edgemesh/test/relaytest"
	"edgemesh/tunnel/p2p/carrier/packet"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
	"edgemesh/tunnel/pull"
)

// numbered is a frame: length 4, number 4, filling.
type numbered struct {
	b    []byte
	done func()
}

func (f *numbered) Bytes() []byte { return f.b }
func (f *numbered) Done()         { f.done() }

// lanes of one peer: frames with numbers, in bucket number % 8, and datagrams.
type lanes struct {
	mu        sync.Mutex
	wake      func() // nil: down
	ups       int
	downs     int
	first     []pull.Frame // that came back
	next, end uint32
	done      int
	datagrams [][]byte

	partial  [pull.Buckets][]byte
	got      map[uint32]int
	order    map[int]uint32 // by bucket, the last number
	disorder int
	taken    [][]byte // datagrams
	closed   int
}

func newLanes() *lanes { return &lanes{got: map[uint32]int{}, order: map[int]uint32{}} }

func (l *lanes) Up(wake func(), _ bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wake = wake
	l.ups++
}

func (l *lanes) Carries() bool { return true }

func (l *lanes) Waits() (stream, datagram bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next < l.end || len(l.first) > 0, len(l.datagrams) > 0
}

func bucketOf(f pull.Frame) int { return int(binary.BigEndian.Uint32(f.Bytes()[4:]) % 8) }

func (l *lanes) Take(pull.Line) (pull.Frame, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.first) > 0 {
		f := l.first[0]
		l.first = l.first[1:]
		return f, bucketOf(f)
	}
	if l.next == l.end {
		return nil, 0
	}
	n := l.next
	l.next++
	b := binary.BigEndian.AppendUint32(nil, 1000+n%3000)
	b = binary.BigEndian.AppendUint32(b, n)
	b = append(b, bytes.Repeat([]byte{byte(n)}, 1000+int(n%3000)-len(b))...)
	f := &numbered{b: b, done: func() { l.mu.Lock(); l.done++; l.mu.Unlock() }}
	return f, bucketOf(f)
}

func (l *lanes) TakeDatagram(_ pull.Line, room int) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.datagrams) == 0 || len(l.datagrams[0]) > room {
		return nil
	}
	b := l.datagrams[0]
	l.datagrams = l.datagrams[1:]
	return b
}

func (l *lanes) Down(left []pull.Frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wake = nil
	l.downs++
	l.first = append(left, l.first...)
}

func (l *lanes) Stream(bucket int, b []byte) (begun int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := append(l.partial[bucket], b...)
	for len(p) >= 8 {
		k := int(binary.BigEndian.Uint32(p))
		if len(p) < k {
			break
		}
		n := binary.BigEndian.Uint32(p[4:])
		if before, ok := l.order[bucket]; ok && n <= before {
			l.disorder++
		}
		l.got[n]++
		l.order[bucket] = n
		p = p[k:]
	}
	l.partial[bucket] = append(l.partial[bucket][:0], p...)
	return len(p)
}

func (l *lanes) Restart(bucket int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partial[bucket] = l.partial[bucket][:0]
}

func (l *lanes) Datagram(b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken = append(l.taken, bytes.Clone(b))
}

func (l *lanes) Flush() {}

func (l *lanes) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed++
}

// send has frames sent up to a number, and datagrams.
func (l *lanes) send(end uint32, datagrams ...string) {
	l.mu.Lock()
	l.end = end
	for _, d := range datagrams {
		l.datagrams = append(l.datagrams, []byte(d))
	}
	wake := l.wake
	l.mu.Unlock()
	if wake != nil {
		wake()
	}
}

func (l *lanes) isUp() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wake == nil {
		return fmt.Errorf("down; up %d times", l.ups)
	}
	return nil
}

// has reports whether all frames arrived, once and in order unless some may have come twice.
func (l *lanes) has(n int) func() error {
	return func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.got) != n || l.disorder > 0 {
			return fmt.Errorf("%d frames of %d, %d out of order", len(l.got), n, l.disorder)
		}
		return nil
	}
}

// sealedPair is two nodes with sealed packets with repair, and the lanes that each has made for the other.
func sealedPair(t *testing.T, renew time.Duration, sealed [2]bool) (nodes [2]*Node, last [2]func() *lanes) {
	_, relay := relaytest.Loopback(t)
	keys := []crypto.PrivKey{newKey(t), newKey(t)}
	m := members.Membership{Members: []members.Member{{Name: "a", ID: idOf(t, keys[0])}, {Name: "b", ID: idOf(t, keys[1])}}, Relays: []peer.AddrInfo{relay}}
	for i, k := range keys {
		n, err := New(Config{Key: k, Listen: addrs(t, "/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"), Membership: m, Sealed: sealed[i],
			Log: testLog(t, m.Members[i].Name), tuned: tuned{renew: renew}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = n.Close() })
		take(n)
		echo(n)
		nodes[i] = n
		var mu sync.Mutex
		var made *lanes
		n.SetLanes(func(peer.ID) packet.Lanes {
			mu.Lock()
			defer mu.Unlock()
			made = newLanes()
			return made
		})
		last[i] = func() *lanes { mu.Lock(); defer mu.Unlock(); return made }
	}
	fair.Eventually(t, 10*time.Second, "a reservation", reserved(nodes[1], 1))
	return nodes, last
}

func areUp(last [2]func() *lanes) func() error {
	return func() error {
		for _, l := range last {
			if l() == nil {
				return fmt.Errorf("no path is agreed on")
			}
			if err := l().isUp(); err != nil {
				return err
			}
		}
		return nil
	}
}

// Two nodes carry frames and datagrams in both directions, while keys change again and again.
func TestSealedPacketsCarryLanes(t *testing.T) {
	t.Parallel()
	nodes, last := sealedPair(t, 2*time.Second, [2]bool{true, true})
	datagramStream(t, nodes[0], nodes[1].ID())
	fair.Eventually(t, 20*time.Second, "sealed packets with repair", areUp(last))
	a, b := last[0](), last[1]()
	begun, sent := time.Now(), uint32(0)
	for time.Since(begun) < 7*time.Second {
		sent += 100
		a.send(sent, "ping")
		b.send(sent)
		time.Sleep(20 * time.Millisecond) // sleep: the rate of frames
	}
	for _, l := range []*lanes{a, b} {
		fair.Eventually(t, 20*time.Second, "all frames", l.has(int(sent)))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.ups != 1 || a.downs != 0 || last[0]() != a || len(b.taken) == 0 || string(b.taken[0]) != "ping" {
		t.Errorf("up %d times, down %d times, %d datagrams", a.ups, a.downs, len(b.taken))
	}
	if st, _ := nodes[0].PeerStatus(nodes[1].ID()); st.Path.Transport != "sealed" {
		t.Errorf("the node says %+v", st.Path)
	}
}

// A peer that does not know them, as one of a former version or with the switch off, is spoken to by streams; what is asked of it is one
// stream in the background, and nothing where this node has them off.
func TestSealedPacketsWithAnOlderPeer(t *testing.T) {
	for _, on := range [][2]bool{{true, false}, {false, true}, {false, false}} {
		nodes, last := sealedPair(t, 0, on)
		s := datagramStream(t, nodes[0], nodes[1].ID())
		if _, err := s.Write([]byte("x")); err != nil {
			t.Errorf("stream: %v", err)
		}
		if p, err := call(nodes[0], nodes[1].ID()); err != nil || p.Kind != paths.KindDirect {
			t.Errorf("%v: %v %v", on, p, err)
		}
		for i, n := range nodes {
			if slices.Contains(n.h.Mux().Protocols(), identity.FlightProtocol) != on[i] {
				t.Errorf("%v: what node %d says it serves", on, i)
			}
		}
		if last[0]() != nil || last[1]() != nil {
			t.Errorf("%v: sealed packets with repair are agreed on", on)
		}
	}
}

// With the connection its sealed paths end: what the peer may not have is given back, and comes by the next one.
func TestSealedPathsEnd(t *testing.T) {
	nodes, last := sealedPair(t, 0, [2]bool{true, true})
	datagramStream(t, nodes[0], nodes[1].ID())
	fair.Eventually(t, 20*time.Second, "sealed packets with repair", areUp(last))
	a, b := last[0](), last[1]()
	a.send(20000)
	fair.Eventually(t, 20*time.Second, "some frames", func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.got) < 100 {
			return fmt.Errorf("%d", len(b.got))
		}
		return nil
	})
	for _, c := range nodes[0].h.Network().ConnsToPeer(nodes[1].ID()) {
		_ = c.Close()
	}
	fair.Eventually(t, 20*time.Second, "both are down", func() error {
		for _, l := range []*lanes{a, b} {
			l.mu.Lock()
			downs, closed := l.downs, l.closed
			l.mu.Unlock()
			if downs != 1 || closed != 1 {
				return fmt.Errorf("down %d times, closed %d times", downs, closed)
			}
		}
		return nil
	})
	// Nothing is missing of what was sent and not given back.
	a.mu.Lock()
	defer a.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	given := map[uint32]bool{}
	for _, f := range a.first {
		given[binary.BigEndian.Uint32(f.Bytes()[4:])] = true
	}
	for n := range a.next {
		if b.got[n] == 0 && !given[n] {
			t.Fatalf("frame %d of %d is lost; %d were given back", n, a.next, len(given))
		}
	}
	if len(given)+a.done != int(a.next) {
		t.Errorf("%d given back, %d done, %d taken", len(given), a.done, a.next)
	}
}
