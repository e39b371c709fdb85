package acks

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/inet/inettest"
	"edgemesh/tunnel/virtio"
)

// segmentSent is a packet of the flow that is thinned, that leaves for the peer.
func segmentSent(seq uint32, payload int) []byte {
	return tcpFrame(1000, 2000, segmentFields{seq: seq, flags: inet.ACK, payload: payload})
}

// segmentFields is what differs between the packets of a flow.
type segmentFields struct {
	seq, ack uint32
	flags    byte
	options  []byte
	payload  int
}

// ackOf is a plain ACK, received.
func ackOf(n uint32) []byte { return received(segmentFields{ack: n, flags: inet.ACK}) }

// received is a packet of the other direction.
func received(f segmentFields) []byte {
	f.seq = 1
	b := tcpFrame(2000, 1000, f)
	ip := b[virtio.HeaderLen:]
	src := [4]byte(ip[12:])
	copy(ip[12:], ip[16:20])
	copy(ip[16:], src[:])
	return b
}

// tcpFrame is a TCP packet with its virtio header.
func tcpFrame(sport, dport uint16, f segmentFields) []byte {
	l4 := inettest.TCP(sport, dport)
	binary.BigEndian.PutUint32(l4[4:], f.seq)
	binary.BigEndian.PutUint32(l4[8:], f.ack)
	l4[12], l4[13] = byte(20+len(f.options))<<2, f.flags
	ip := inettest.IPv4(inet.ProtoTCP, nil, slices.Concat(l4, f.options, make([]byte, f.payload)))
	return append(make([]byte, virtio.HeaderLen), ip...)
}

// thinned is a sender's tunnel: what the device gets of it.
type thinned struct {
	t   *testing.T
	a   *Thinner
	got []uint32 // ACKs
	now int64
}

func newThinned(t *testing.T) *thinned {
	d := &thinned{t: t}
	d.a = New(0, new(sync.WaitGroup), func() bool { return false }, d.write)
	d.a.wait.Store(int64(time.Hour))
	t.Cleanup(d.a.Close)
	return d
}

func (d *thinned) parse(b []byte) *inet.Header {
	d.t.Helper()
	var h inet.Header
	if err := h.Parse(b[virtio.HeaderLen:], 0); err != nil {
		d.t.Fatalf("test packet: %v", err)
	}
	return &h
}

func (d *thinned) send(seq uint32, n int) {
	for ; n > 0; n -= 1400 {
		b := segmentSent(seq, min(n, 1400))
		d.write(d.a.Sent(d.parse(b), b[virtio.HeaderLen:], d.now))
		seq += 1400
	}
}

func (d *thinned) arrive(b []byte) {
	release, holds := d.a.Received(d.parse(b), b, d.now)
	d.write(release)
	if !holds {
		d.note(b)
	}
}

// write is what becomes of a released ACK.
func (d *thinned) write(h *Held) {
	if h != nil {
		d.note(h.Frame())
		h.Free()
	}
}

// note keeps the ACK of what the device gets.
func (d *thinned) note(b []byte) {
	d.got = append(d.got, binary.BigEndian.Uint32(b[virtio.HeaderLen+20+8:]))
}

func (d *thinned) ack(n uint32) { d.arrive(ackOf(n)) }

// expire lets the timers of what is held run out.
func (d *thinned) expire() {
	for _, f := range d.a.flows {
		if f != nil {
			d.a.expire(f)
		}
	}
}

// A slow start gets to any window, and in no round trip is there a ninth sample.
func TestSlowStartIsNotEnded(t *testing.T) {
	d := newThinned(t)
	const mss, begin = 1400, 1<<32 - 100_000 // sequence numbers wrap
	una, next, cwnd := uint32(begin&0xffffffff), uint32(begin&0xffffffff), uint32(10*mss)
	round, samples, rounds := next, 0, 0
	acked := next
	for rounds < 14 && cwnd < 8<<20 {
		if n := una + cwnd - next; n > 0 {
			d.send(next, int(n))
			next += n / mss * mss
		}
		if acked != next {
			for range 40 { // the receiver acknowledges each packet; then comes a stall
				if acked != next {
					acked += mss
					d.ack(acked)
				}
			}
		} else {
			d.expire()
		}
		for _, a := range d.got {
			if int32(a-una) <= 0 {
				t.Fatalf("ACK %d after %d", a, una)
			}
			if int32(a-round) > 0 {
				round, samples = next, 0
				rounds++
			}
			if cwnd >= 16*mss { // HYSTART_LOW_WINDOW
				samples++
			}
			if samples > 8 {
				t.Fatalf("%d ACKs in a round trip at a window of %d", samples, cwnd)
			}
			cwnd += a - una
			una = a
		}
		d.got = nil
	}
	if cwnd < 8<<20 {
		t.Errorf("the window is %d bytes after %d round trips", cwnd, rounds)
	}
}

// TCP options with their padding.
var (
	timestamps = []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}
	sack       = []byte{1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2}
)

// What is not a plain ACK of a young flow passes, behind the ACK that was held.
func TestWhatPasses(t *testing.T) {
	for name, c := range map[string]struct {
		packet []byte
		want   []uint32
	}{
		"next":        {ackOf(7001), nil},
		"timestamps":  {received(segmentFields{ack: 7001, flags: inet.ACK, options: timestamps}), nil},
		"good part":   {ackOf(40_001), []uint32{40_001}},
		"everything":  {ackOf(140_001), []uint32{140_001}},
		"data":        {received(segmentFields{ack: 7001, flags: inet.ACK, payload: 10}), []uint32{1401, 7001}},
		"window":      {ackOf(1401), nil},
		"old":         {ackOf(1), []uint32{1401, 1}},
		"congestion":  {received(segmentFields{ack: 7001, flags: inet.ACK | 0x40}), []uint32{1401, 7001}},
		"end":         {received(segmentFields{ack: 7001, flags: inet.ACK | inet.FIN}), []uint32{1401, 7001}},
		"selective":   {received(segmentFields{ack: 7001, flags: inet.ACK, options: sack}), []uint32{1401, 7001}},
		"never sent":  {ackOf(900_001), []uint32{900_001}},
		"other flow":  {inettest.With(ackOf(7001), virtio.HeaderLen+22, 9), []uint32{7001}},
		"many blocks": {received(segmentFields{ack: 7001, flags: inet.ACK, options: slices.Concat(timestamps, sack)}), []uint32{1401, 7001}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newThinned(t)
			d.send(1, 140_000)
			d.ack(1401)
			if d.got != nil {
				t.Fatalf("passed: %v", d.got)
			}
			d.arrive(c.packet)
			if !slices.Equal(d.got, c.want) {
				t.Errorf("passed: %v, want %v", d.got, c.want)
			}
		})
	}
}

// Flows that are not concerned: after a loss, after a while, small ones, short paths.
func TestThinnedOnlyInSlowStart(t *testing.T) {
	loss := received(segmentFields{ack: 1, flags: inet.ACK, options: sack})
	const before = 140_001 - thinFlight + 1 // it leaves less in flight than is thinned
	for name, prepare := range map[string]func(d *thinned){
		"loss":       func(d *thinned) { d.arrive(loss) },
		"old":        func(d *thinned) { d.now += thinTime + 1 },
		"short path": func(d *thinned) { d.a.SetRTT(thinRTT - 1) },
		"clean path": func(d *thinned) { d.a.path.clean = func() bool { return true } },
		"little":     func(d *thinned) { d.ack(before) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newThinned(t)
			d.send(1, 140_000)
			prepare(d)
			d.got = nil
			next := uint32(1401)
			if name == "little" {
				next = before + 1400
			}
			d.ack(next)
			if !slices.Equal(d.got, []uint32{next}) {
				t.Errorf("passed: %v", d.got)
			}
		})
	}
}

// On a path as long as a satellite's slow start takes longer.
func TestThinnedOnLongPaths(t *testing.T) {
	for name, c := range map[string]struct {
		old  int64
		want []uint32
	}{
		"in slow start": {thinTrips * int64(600*time.Millisecond), nil},
		"after it":      {thinTrips*int64(600*time.Millisecond) + 1, []uint32{1401}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newThinned(t)
			d.a.rtt.Store(int64(600 * time.Millisecond))
			d.send(1, 140_000)
			d.now += c.old
			d.ack(1401)
			if !slices.Equal(d.got, c.want) {
				t.Errorf("passed: %v, want %v", d.got, c.want)
			}
		})
	}
}

// Silence makes a flow young again.
func TestThinnedAfterSilence(t *testing.T) {
	d := newThinned(t)
	d.send(1, 140_000)
	d.arrive(received(segmentFields{ack: 1, flags: inet.ACK, options: sack}))
	d.ack(140_001)
	d.now += thinIdle + 1
	d.send(140_001, 140_000)
	d.got = nil
	d.ack(141_401)
	if d.got != nil {
		t.Errorf("an ACK passed: %v", d.got)
	}
}

// Flows that meet in the table do not take turns: up to thinWays have places beside each
// other, another one goes without while they are in use, and none that has been thinned is so again.
func TestFlowsMeet(t *testing.T) {
	d := newThinned(t)
	port := func(b []byte, at int, p uint16) []byte {
		binary.BigEndian.PutUint16(b[virtio.HeaderLen+20+at:], p)
		return b
	}
	send := func(p uint16) {
		for seq := uint32(1); seq < 140_000; seq += 1400 {
			b := port(segmentSent(seq, 1400), 0, p)
			d.a.Sent(d.parse(b), b[virtio.HeaderLen:], d.now)
		}
	}
	thins := func(p uint16) bool {
		b := port(ackOf(1401), 2, p)
		_, holds := d.a.Received(d.parse(b), b, d.now)
		return holds
	}
	send(1)
	h := d.parse(segmentSent(1, 1))
	set := func(p uint16) *(*flow) { return &d.a.set(key{h.Src, h.Dst, uint32(p)<<16 | 2000})[0] }
	var meet []uint16
	for p := uint16(1); len(meet) < thinWays+1; p++ {
		if set(p) == set(1) {
			meet = append(meet, p)
		}
	}
	for _, p := range meet {
		send(p)
	}
	for i, p := range meet {
		if got := thins(p); got != (i < thinWays) {
			t.Errorf("flow %d of a set: thinned %v", i, got)
		}
	}
	for range 20 { // all of them busy for 10 s
		d.now += thinIdle / 2
		for _, p := range meet {
			send(p)
		}
	}
	for i, p := range meet {
		if thins(p) {
			t.Errorf("flow %d is thinned after 10 s", i)
		}
	}
	d.now += thinIdle + 1
	send(meet[thinWays])
	if !thins(meet[thinWays]) {
		t.Error("places of quiet flows are not free")
	}
}

// A held ACK comes when no other follows, and never after close.
func TestHeldAckComes(t *testing.T) {
	got := make(chan uint32, 1)
	d := newThinned(t)
	d.a.late = func(h *Held) { got <- h.ack }
	d.a.SetRTT(thinRTT)
	d.send(1, 140_000)
	d.ack(1401)
	select {
	case a := <-got:
		if a != 1401 {
			t.Errorf("ACK %d", a)
		}
	case <-time.After(60 * time.Second):
		t.Fatal("it never came")
	}
	d.a.Close()
	d.ack(2801)
	if !slices.Equal(d.got, []uint32{2801}) { // not held any longer
		t.Errorf("passed: %v", d.got)
	}
}

// FuzzACKs: whatever a peer sends on a flow whose acknowledgements are thinned, each packet is written, or held and then
// written or replaced; nothing is written that did not come.
func FuzzACKs(f *testing.F) {
	f.Add([]byte{0x10, 0, 0, 1, 20, 0x10, 0, 1, 0, 20, 0x18, 0, 2, 0, 30})
	f.Fuzz(func(t *testing.T, script []byte) {
		a := New(0, &sync.WaitGroup{}, func() bool { return false }, func(*Held) {})
		a.SetRTT(time.Hour)
		defer a.Close()
		src, dst := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.168.0.1")
		data := make([]byte, 20+20+thinFlight)
		a.Sent(&inet.Header{Version: 4, Proto: inet.ProtoTCP, L4: 20, L4Len: 20, Src: dst, Dst: src}, data, 0)
		in, out := 0, 0
		for now := int64(1); len(script) > 4; script = script[5:] {
			now += int64(script[1]) * 1e6
			tcp := make([]byte, 20+int(script[4]))
			tcp[12], tcp[13] = 5<<4, script[0]
			copy(tcp[9:12], script[1:4])
			n := 20
			if len(tcp) >= 32 && script[4]%2 == 0 {
				n, tcp[12] = 32, 8<<4
				copy(tcp[20:], []byte{1, 1, 8, 10})
			}
			b := append(make([]byte, virtio.HeaderLen+20), tcp...)
			in++
			release, holds := a.Received(&inet.Header{Version: 4, Proto: inet.ProtoTCP, L4: 20, L4Len: n, Src: src, Dst: dst}, b, now)
			if release != nil {
				if len(release.Frame()) > heldLen {
					t.Fatalf("an ACK of %d bytes", len(release.Frame()))
				}
				out++
				release.Free()
			}
			if !holds {
				out++
			}
		}
		if out > in {
			t.Fatalf("%d packets came, %d are written", in, out)
		}
	})
}
