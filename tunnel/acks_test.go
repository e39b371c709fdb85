package tunnel

import (
	"encoding/binary"
	"slices"
	"sync"
	"testing"
	"time"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/inet/inettest"
	"edgemesh/tunnel/virtio"
)

// tcpFrame is a TCP packet with its virtio header.
func tcpFrame(out bool, seq, ack uint32, flags byte, options []byte, payload int) []byte {
	l4 := inettest.TCP(1000, 2000)
	if !out {
		l4 = inettest.TCP(2000, 1000)
	}
	binary.BigEndian.PutUint32(l4[4:], seq)
	binary.BigEndian.PutUint32(l4[8:], ack)
	l4[12], l4[13] = byte(20+len(options))<<2, flags
	ip := inettest.IPv4(inet.ProtoTCP, nil, slices.Concat(l4, options, make([]byte, payload)))
	if !out {
		src := [4]byte(ip[12:])
		copy(ip[12:], ip[16:20])
		copy(ip[16:], src[:])
	}
	return append(make([]byte, virtio.HeaderLen), ip...)
}

// thinned is a sender's tunnel: what the device gets of it.
type thinned struct {
	t   *testing.T
	a   acks
	got []uint32 // ACKs
	now int64
}

func newThinned(t *testing.T) *thinned {
	d := &thinned{t: t}
	d.a.wg, d.a.late = new(sync.WaitGroup), d.write
	d.a.pool = &newPools().acks
	d.a.wait.Store(int64(time.Hour))
	t.Cleanup(d.a.close)
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
		b := tcpFrame(true, seq, 0, inet.ACK, nil, min(n, 1400))
		d.write(d.a.sent(d.parse(b), b[virtio.HeaderLen:], d.now))
		seq += 1400
	}
}

func (d *thinned) arrive(b []byte) {
	release, holds := d.a.received(d.parse(b), b, d.now)
	d.write(release)
	if !holds {
		d.note(b)
	}
}

// write is what becomes of a released ACK.
func (d *thinned) write(h *heldACK) {
	if h != nil {
		d.note(h.frame())
		d.a.free(h)
	}
}

// note keeps the ACK of what the device gets.
func (d *thinned) note(b []byte) {
	d.got = append(d.got, binary.BigEndian.Uint32(b[virtio.HeaderLen+20+8:]))
}

func (d *thinned) ack(n uint32) { d.arrive(tcpFrame(false, 1, n, inet.ACK, nil, 0)) }

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

// What is not a plain ACK of a young flow passes, behind the ACK that was held.
func TestWhatPasses(t *testing.T) {
	timestamps := []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}
	for name, c := range map[string]struct {
		packet []byte
		want   []uint32
	}{
		"next":        {tcpFrame(false, 1, 7001, inet.ACK, nil, 0), nil},
		"timestamps":  {tcpFrame(false, 1, 7001, inet.ACK, timestamps, 0), nil},
		"good part":   {tcpFrame(false, 1, 40_001, inet.ACK, nil, 0), []uint32{40_001}},
		"everything":  {tcpFrame(false, 1, 140_001, inet.ACK, nil, 0), []uint32{140_001}},
		"data":        {tcpFrame(false, 1, 7001, inet.ACK, nil, 10), []uint32{1401, 7001}},
		"window":      {tcpFrame(false, 1, 1401, inet.ACK, nil, 0), nil},
		"old":         {tcpFrame(false, 1, 1, inet.ACK, nil, 0), []uint32{1401, 1}},
		"congestion":  {tcpFrame(false, 1, 7001, inet.ACK|0x40, nil, 0), []uint32{1401, 7001}},
		"end":         {tcpFrame(false, 1, 7001, inet.ACK|inet.FIN, nil, 0), []uint32{1401, 7001}},
		"selective":   {tcpFrame(false, 1, 7001, inet.ACK, []byte{1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2}, 0), []uint32{1401, 7001}},
		"never sent":  {tcpFrame(false, 1, 900_001, inet.ACK, nil, 0), []uint32{900_001}},
		"other flow":  {inettest.With(tcpFrame(false, 1, 7001, inet.ACK, nil, 0), virtio.HeaderLen+22, 9), []uint32{7001}},
		"many blocks": {tcpFrame(false, 1, 7001, inet.ACK, append(timestamps, 1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2), 0), []uint32{1401, 7001}},
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
	selective := []byte{1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2}
	for name, prepare := range map[string]func(d *thinned){
		"loss":       func(d *thinned) { d.arrive(tcpFrame(false, 1, 1, inet.ACK, selective, 0)); d.got = nil },
		"old":        func(d *thinned) { d.now += thinTime + 1 },
		"short path": func(d *thinned) { d.a.setRTT(thinRTT - 1) },
		"little":     func(d *thinned) { d.ack(140_001 - thinFlight + 1); d.got = nil },
	} {
		t.Run(name, func(t *testing.T) {
			d := newThinned(t)
			d.send(1, 140_000)
			prepare(d)
			last := uint32(140_001 - thinFlight + 1 + 1400)
			if d.ack(last); !slices.Equal(d.got, []uint32{last}) {
				t.Errorf("passed: %v", d.got)
			}
		})
	}
	// Silence makes it young again, and the place of a quiet flow is free.
	d := newThinned(t)
	d.send(1, 140_000)
	d.arrive(tcpFrame(false, 1, 1, inet.ACK, selective, 0))
	d.ack(140_001)
	d.now += thinIdle + 1
	d.send(140_001, 140_000)
	d.got = nil
	if d.ack(141_401); d.got != nil {
		t.Errorf("after silence an ACK passed: %v", d.got)
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
			b := port(tcpFrame(true, seq, 0, inet.ACK, nil, 1400), 0, p)
			d.a.sent(d.parse(b), b[virtio.HeaderLen:], d.now)
		}
	}
	thins := func(p uint16) bool {
		b := port(tcpFrame(false, 1, 1401, inet.ACK, nil, 0), 2, p)
		_, holds := d.a.received(d.parse(b), b, d.now)
		return holds
	}
	send(1)
	h := d.parse(tcpFrame(true, 1, 0, inet.ACK, nil, 1))
	set := func(p uint16) *(*ackFlow) { return &d.a.set(flowKey{h.Src, h.Dst, uint32(p)<<16 | 2000})[0] }
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
	d.a.late = func(h *heldACK) { got <- h.ack }
	d.a.setRTT(thinRTT)
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
	d.a.close()
	d.ack(2801)
	if !slices.Equal(d.got, []uint32{2801}) { // not held any longer
		t.Errorf("passed: %v", d.got)
	}
}
