package tunnel

import (
	"fmt"
	"testing"

	"edgemesh/tunnel/virtio"
)

// testHalves are halves with a clock that is set by hand.
func testHalves() (h *halves, now *int64, lost *int) {
	now, lost = new(int64), new(int)
	h = &halves{pools: newPools(), now: func() int64 { return *now }, lost: func() { *lost++ }}
	return h, now, lost
}

func (h *halves) waiting() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := 0
	for i := range h.slots {
		if s := h.slots[i]; s.p != nil {
			n++
			held += s.p.charge()
		}
	}
	if held != h.held || held > maxHalfBytes {
		panic(fmt.Sprintf("%d bytes are held, %d counted, %d allowed", held, h.held, maxHalfBytes))
	}
	return n
}

// Halves whose others never come hold little memory however long they are, over all paths, and not for long.
func TestHalvesAreBounded(t *testing.T) {
	for _, size := range []int{100, 1400, 8900, 32768, virtio.MaxPacket} {
		h, now, lost := testHalves()
		sinks := []*DatagramSink{{}, {}, {}}
		const sent = 5000
		for i := range sent {
			if h.match(sinks[i%3], kindFirst, uint16(i), make([]byte, size)) != nil {
				t.Fatal("a first half met a first half")
			}
			*now++
		}
		n := h.waiting()
		if n == 0 || n > maxHalves || *lost != sent-n {
			t.Errorf("%d bytes: %d wait, %d of %d counted as lost", size, n, *lost, sent)
		}
		*now += halfLife
		h.expire()
		if n := h.waiting(); n != 0 || *lost != sent {
			t.Errorf("%d bytes: %d wait after their time, %d lost", size, n, *lost)
		}
		h.close()
	}
}

func TestHalvesOfOnePacketMeet(t *testing.T) {
	h, now, lost := testHalves()
	a, b := &DatagramSink{}, &DatagramSink{}
	begin := func() { h.match(a, kindFirst, 7, []byte("first")) }
	begin()
	if p := h.match(a, kindSecond, 7, []byte("second")); p == nil || string(p.frame()) != "first" {
		t.Errorf("the other half is %v", p)
	}
	for what, other := range map[string]func() *packet{
		"of another path":       func() *packet { return h.match(b, kindSecond, 7, []byte("second")) },
		"of another packet":     func() *packet { return h.match(a, kindSecond, 7+maxHalves, []byte("second")) },
		"with another checksum": func() *packet { return h.match(a, kindSecond|kindPartial, 7, []byte("second")) },
		"the same half":         func() *packet { return h.match(a, kindFirst, 7, []byte("second")) },
		"too late": func() *packet {
			*now += halfLife
			return h.match(a, kindSecond, 7, []byte("second"))
		},
		"too long together": func() *packet { return h.match(a, kindSecond, 7, make([]byte, virtio.MaxPacket)) },
	} {
		begin()
		if other() != nil {
			t.Errorf("%s: joined", what)
		}
	}
	h.forget(a)
	h.forget(b)
	if h.waiting() != 0 || *lost == 0 {
		t.Errorf("%d wait after the end of their paths", h.waiting())
	}
	h.close()
	begin()
	if h.waiting() != 0 {
		t.Error("a closed peer keeps a half")
	}
}
