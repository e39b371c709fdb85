package tunnel_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/tunnel"
	"edgemesh/tunnel/pull"
	"edgemesh/tunnel/tunneltest"
)

// taker takes what a's lanes have, and hands it to b's: an underlay without loss.
type taker struct {
	mu      sync.Mutex
	from    *tunnel.Pulled
	to      *tunnel.Pulled
	room    int
	flying  []pull.Frame // taken, and not there yet
	buckets []int        // of those
	keeps   bool         // what is taken stays on its way
	late    bool         // it is on its way for a while
	rtt     time.Duration
	framed  int                   // frames taken
	pass    func([]byte) [][]byte // what arrives in a datagram's stead; nil: it does
	sent    int                   // datagrams taken
	longest int                   // of those
	waits   atomic.Int64          // how often it was told that packets wait
	woken   chan struct{}
	end     chan struct{}
	wg      sync.WaitGroup
}

func newTaker(t *testing.T, from *node, fromID tunnel.PeerID, to *node, toID tunnel.PeerID) *taker {
	x := &taker{from: from.Pull(toID), to: to.Pull(fromID), room: 1400, rtt: time.Millisecond, woken: make(chan struct{}, 1), end: make(chan struct{})}
	x.wg.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				x.arrive()
			case <-x.woken:
				x.move()
			case <-x.end:
				return
			}
		}
	})
	t.Cleanup(func() {
		close(x.end)
		x.wg.Wait()
		x.down()
		x.from.Close()
		x.to.Close()
	})
	return x
}

func (x *taker) wake() {
	select {
	case x.woken <- struct{}{}:
	default:
	}
}

func (x *taker) Waited(time.Duration) { x.waits.Add(1) }

func (x *taker) up() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.from.Up(x.wake, true)
}

// upForDatagrams is up for an underlay that takes the datagram lane only.
func (x *taker) upForDatagrams() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.from.Up(x.wake, false)
}

// set changes what it does.
func (x *taker) set(f func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f()
}

// datagrams is how many were taken, and how long the longest was.
func (x *taker) datagrams() (sent, longest int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.sent, x.longest
}

// down gives back what is on its way.
func (x *taker) down() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.from.Down(x.flying)
	x.flying, x.buckets, x.keeps = nil, nil, false
}

func (x *taker) move() {
	x.mu.Lock()
	defer x.mu.Unlock()
	line := pull.Line{RTT: x.rtt.Seconds(), Least: 0.010, Rate: 1e9, Room: x.room, Path: x}
	for {
		stream, datagram := x.from.Waits()
		if !stream && !datagram {
			break
		}
		if b := x.from.TakeDatagram(line, x.room); b != nil {
			x.sent, x.longest = x.sent+1, max(x.longest, len(b))
			arrive := [][]byte{bytes.Clone(b)}
			if x.pass != nil {
				arrive = x.pass(arrive[0])
			}
			for _, b := range arrive {
				x.to.Datagram(b)
			}
		}
		f, bucket := x.from.Take(line)
		if f != nil {
			x.framed++
		}
		switch {
		case f == nil:
		case x.keeps, x.late:
			x.flying, x.buckets = append(x.flying, f), append(x.buckets, bucket)
		default:
			x.deliver(f, bucket)
		}
	}
	x.to.Flush()
}

func (x *taker) deliver(f pull.Frame, bucket int) {
	b := bytes.Clone(f.Bytes())
	x.to.Stream(bucket, b[:len(b)/2])
	x.to.Stream(bucket, b[len(b)/2:])
	f.Done()
}

// arrive ends what is on its way.
func (x *taker) arrive() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.late {
		return
	}
	for i, f := range x.flying {
		x.deliver(f, x.buckets[i])
	}
	x.flying, x.buckets = nil, nil
	x.to.Flush()
	x.wake() // as an acknowledgement does
}

// A flow moves between carriers and an underlay that takes its packets, again and again: every packet arrives, once and in order.
func TestPulledTakesOver(t *testing.T) {
	const total, window = 4000, 128
	net, a, b, path := pair(t, tunnel.Limits{HoldTime: time.Minute, SwitchTime: time.Minute, WaitTime: time.Minute, DelayTarget: time.Minute})
	x := newTaker(t, a, nodeA, b, nodeB)
	rnd := rand.New(rand.NewPCG(3, 4))
	up := false
	for i := range total {
		if i%200 == 199 {
			if up = !up; up {
				b.packets(t, i-window/2) // the carrier is known there
				path.Stall()             // what it has comes late
				time.AfterFunc(time.Duration(rnd.IntN(3000))*time.Microsecond, path.Resume)
				x.up()
			} else {
				b.packets(t, i-20)
				x.mu.Lock()
				x.keeps = true
				x.mu.Unlock()
				for range 10 {
					a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, []byte("filling")))
				}
				fair.Eventually(t, patience, "something is on its way", fair.True(func() bool {
					x.mu.Lock()
					defer x.mu.Unlock()
					return len(x.flying) > 0
				}))
				x.down()
			}
		}
		a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, binary.BigEndian.AppendUint64(make([]byte, rnd.IntN(1000)), uint64(i))))
		if i%32 == 0 && i > window {
			b.packets(t, i-window)
		}
	}
	fillings := total / 400 * 10
	n := 0
	for _, p := range b.packets(t, total+fillings) {
		if bytes.HasSuffix(p, []byte("filling")) {
			continue
		}
		if number(p) != uint64(n) {
			t.Fatalf("packet %d has number %d", n, number(p))
		}
		n++
	}
	if n := net.Opened(); n < total/400 {
		t.Errorf("%d carriers were opened", n)
	}
	if d := a.Stats().Total.Drops.Total() + b.Stats().Total.Drops.Total(); d != 0 {
		t.Errorf("%d drops", d)
	}
}

// What a stuck carrier had not taken arrives when an underlay takes the packets, though no packet follows.
func TestPulledFromStuckCarrier(t *testing.T) {
	_, a, b, path := pair(t, tunnel.Limits{SwitchTime: 10 * time.Millisecond})
	x := newTaker(t, a, nodeA, b, nodeB)
	a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, []byte("first")))
	b.packets(t, 1)
	path.Stall()
	for range 2 { // one more than the path holds
		a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, make([]byte, 60000)))
		fair.Eventually(t, patience, "the writer has it", fair.True(func() bool {
			return a.Stats().Peers[0].Lanes[tunnel.StreamLane].QueuedPackets == 0
		}))
	}
	x.up()
	b.packets(t, 2)
}

// While an underlay takes the packets there is no carrier; datagrams are cut to what it takes, and one that fits no two goes as a frame.
func TestPulledDatagrams(t *testing.T) {
	net, a, b, _ := pair(t, tunnel.Limits{})
	x := newTaker(t, a, nodeA, b, nodeB)
	x.up()
	sent := [][]byte{tunneltest.UDPPacket(addrA, addrB, make([]byte, 1450)), tunneltest.UDPPacket(addrA, addrB, []byte("small")),
		tunneltest.UDPPacket(addrA, addrB, make([]byte, 5000)), tunneltest.TCPPacket(addrA, addrB, make([]byte, 60000))}
	for i, p := range sent {
		a.dev.Inject(p)
		if got := b.packets(t, i+1)[i]; !bytes.Equal(got, p) {
			t.Errorf("packet %d arrived with %d bytes, sent %d", i, len(got), len(p))
		}
	}
	if n := net.Opened(); n != 0 {
		t.Errorf("%d carriers were opened", n)
	}
	s := a.Stats()
	if s.Total.TxPackets != 4 || s.Total.Drops.Total() != 0 || s.Peers[0].Lanes[tunnel.StreamLane].Rate != 1e9 {
		t.Errorf("stats of a: %+v", s)
	}
	if x.waits.Load() == 0 {
		t.Error("the path is not told how long packets wait")
	}
}

// ACKs that may be lost go as datagrams: not one that opens a connection or a window, nor the first after a while.
func TestPulledACKs(t *testing.T) {
	_, a, b, _ := pair(t, tunnel.Limits{})
	x := newTaker(t, a, nodeA, b, nodeB)
	x.rtt = time.Hour
	x.up()
	for i, c := range []struct {
		what   string
		flags  byte
		window uint16
		framed int // by then
	}{
		{"SYN", 0x02, 100, 1}, {"the handshake's end", 0x10, 100, 2}, {"an ACK", 0x10, 100, 2}, {"another", 0x10, 100, 2},
		{"the window shuts", 0x10, 0, 2}, {"and opens", 0x10, 100, 3}, {"FIN", 0x11, 100, 4},
	} {
		p := tunneltest.TCPPacket(addrA, addrB, nil)
		p[20+13] = c.flags
		binary.BigEndian.PutUint16(p[20+14:], c.window)
		a.dev.Inject(p)
		b.packets(t, i+1)
		x.mu.Lock()
		if x.framed != c.framed {
			t.Errorf("%s: %d frames, want %d", c.what, x.framed, c.framed)
		}
		x.mu.Unlock()
	}
}

// What is no frame counts as malformed, and its bucket is ignored until it begins again.
func TestPulledMalformed(t *testing.T) {
	_, a, b, _ := pair(t, tunnel.Limits{})
	x := newTaker(t, a, nodeA, b, nodeB)
	x.mu.Lock()
	defer x.mu.Unlock()
	good := append([]byte{2, 0, 0, 0}, make([]byte, 10)...)
	good = append(good, tunneltest.TCPPacket(addrA, addrB, []byte("good"))...)
	good[3] = byte(len(good) - 4)
	x.to.Stream(1, []byte{9, 0, 0, 50})
	x.to.Stream(1, good) // out of step
	x.to.Stream(2, good)
	b.packets(t, 1)
	if d := b.Stats().Total.Drops; d[tunnel.DropBadFrame] != 1 || d.Total() != 1 {
		t.Errorf("drops %v", d)
	}
	x.to.Restart(1)
	x.to.Stream(1, good)
	b.packets(t, 2)
}

// What says that much follows has no memory before it does.
func TestHeadersAlone(t *testing.T) {
	_, a, b, _ := pair(t, tunnel.Limits{})
	x := newTaker(t, a, nodeA, b, nodeB)
	x.mu.Lock()
	defer x.mu.Unlock()
	frame := append([]byte{2, 0, 0xff, 0}, make([]byte, 10)...)
	frame = append(frame, tunneltest.TCPPacket(addrA, addrB, make([]byte, 0xff00-10-40))...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for bucket := range 128 {
		x.to.Stream(bucket, frame[:1000])
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 2<<20 {
		t.Errorf("%d bytes for 128 pieces of 1000", took)
	}
	for i := 1000; i < len(frame); i += 1000 {
		x.to.Stream(1, frame[i:min(i+1000, len(frame))])
	}
	b.packets(t, 1)
}

// While packets wait, they move between the two carriers again and again as their chooser says, in both directions: all arrive, once and in
// order.
func TestCarriersAreChosen(t *testing.T) {
	const moves, window = 20, 300
	var tcp atomic.Bool // its round trip is short: carriers are better where there are any
	net, a, b, _ := startPair(t, tunnel.Config{
		TCP:    func(tunnel.PeerID) (time.Duration, bool) { return time.Millisecond / 2, tcp.Load() },
		Limits: tunnel.Limits{HoldTime: time.Minute, SwitchTime: time.Minute, WaitTime: time.Minute, DelayTarget: time.Minute}})
	takers := [2]*taker{newTaker(t, a, nodeA, b, nodeB), newTaker(t, b, nodeB, a, nodeA)}
	var end atomic.Bool
	var sent [2]atomic.Int64
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end.Store(true)
	for i, flow := range [2]struct {
		from, to     *node
		source, dest netip.AddrPort
	}{{a, b, addrA, addrB}, {b, a, addrB, addrA}} {
		takers[i].late, takers[i].rtt = true, 0 // nothing may wait too long
		takers[i].up()
		wg.Go(func() {
			for n := 0; !end.Load(); n++ {
				flow.from.dev.Inject(tunneltest.TCPPacket(flow.source, flow.dest, binary.BigEndian.AppendUint64(make([]byte, n%1000), uint64(n))))
				sent[i].Store(int64(n + 1))
				if n%32 == 0 && n > window {
					flow.to.packets(t, n-window)
				}
			}
		})
	}
	for i := range moves {
		tcp.Store(i%2 == 0)
		for k, x := range takers {
			fair.Eventually(t, patience, "packets take the other carrier", fair.True(func() bool { return x.from.Carries() != (i%2 == 0) }))
			[2]*node{b, a}[k].packets(t, int(sent[k].Load())+1) // it is known there
		}
	}
	end.Store(true)
	wg.Wait()
	for i, to := range [2]*node{b, a} {
		for n, p := range to.packets(t, int(sent[i].Load())) {
			if number(p) != uint64(n) {
				t.Fatalf("direction %d, of %d: packet %d has number %d", i, sent[i].Load(), n, number(p))
			}
		}
	}
	if n := net.Opened(); n < moves {
		t.Errorf("%d carriers were opened", n)
	}
	if d := a.Stats().Total.Drops.Total() + b.Stats().Total.Drops.Total(); d != 0 {
		t.Errorf("%d drops", d)
	}
	t.Logf("%d and %d packets", sent[0].Load(), sent[1].Load())
}

// While carriers have the stream lane, because they are better or the underlay takes no more, the datagram lane stays with the underlay.
func TestDatagramsBesideCarriers(t *testing.T) {
	const count = 100
	for _, all := range []bool{true, false} {
		net, a, b, _ := startPair(t, tunnel.Config{
			TCP:    func(tunnel.PeerID) (time.Duration, bool) { return time.Millisecond / 5, true }, // carriers are better
			Limits: tunnel.Limits{WaitTime: time.Minute, DelayTarget: time.Minute}})
		x := newTaker(t, a, nodeA, b, nodeB)
		if all {
			x.up()
		} else {
			x.upForDatagrams()
		}
		x.set(func() { // nothing is taken
			for range count {
				a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, []byte("together")))
			}
			if all {
				fair.Eventually(t, patience, "the carriers are compared", fair.True(func() bool { return a.StatsOf(nodeB).Choice == "round trip below 1 ms" }))
			}
		})
		b.packets(t, count)
		fair.Eventually(t, patience, "carriers have the stream lane", fair.True(func() bool { return !x.from.Carries() }))
		for i := range count {
			before := a.Taken(nodeB)
			a.dev.Inject(tunneltest.UDPPacket(addrA, addrB, []byte("beside it")))
			b.packets(t, count+2*i+1)
			if a.Taken(nodeB) != before {
				t.Fatal("a datagram counts as taken by the carrier that is compared")
			}
			a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, []byte("by a carrier")))
			b.packets(t, count+2*i+2)
			fair.Eventually(t, patience, "it counts", fair.True(func() bool { return a.Taken(nodeB) > before }))
		}
		if n, _ := x.datagrams(); n != count || net.Opened() > 2 || a.Stats().Total.Drops.Total() != 0 {
			t.Errorf("all %v: %d datagrams of %d, %d carriers, drops %v", all, n, count, net.Opened(), a.Stats().Total.Drops)
		}
		x.down()
		a.dev.Inject(tunneltest.UDPPacket(addrA, addrB, []byte("by a carrier of its own")))
		b.packets(t, 3*count+1)
	}
}

// A peer costs nothing more while no packets wait: nobody looks which carrier is better, and packets leave by the one that was.
func TestIdleChoiceCostsNothing(t *testing.T) {
	_, a, b, _ := pair(t, tunnel.Limits{})
	x := newTaker(t, a, nodeA, b, nodeB)
	x.up()
	looking := func() bool {
		stacks := make([]byte, 1<<20)
		return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("tunnel.(*peer).choose"))
	}
	for i := range 100 { // one after the other
		a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, []byte("alone")))
		b.packets(t, i+1)
		if looking() {
			t.Fatal("carriers are compared though no packet waits")
		}
	}
	x.mu.Lock() // nothing is taken
	for range 3 {
		a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, []byte("together")))
	}
	fair.Eventually(t, patience, "carriers are compared", fair.True(looking))
	x.mu.Unlock()
	b.packets(t, 103)
	fair.Eventually(t, patience, "they are no longer", fair.True(func() bool { return !looking() }))
	if s := a.StatsOf(nodeB); !x.from.Carries() || s.Choice != "not compared yet" {
		t.Errorf("packets are taken: %v; %q", x.from.Carries(), s.Choice)
	}
	x.down()
	if s := a.StatsOf(nodeB); s.Choice != "" {
		t.Errorf("there is a choice: %q", s.Choice)
	}
}
