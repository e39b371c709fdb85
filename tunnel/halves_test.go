package tunnel

import (
	"fmt"
	"testing"
	"time"

	"edgemesh/tunnel/virtio"
)

// testHalves are halves with a clock that is set by hand.
func testHalves() (h *halves, now *int64, lost *int) {
	now, lost = new(int64), new(int)
	h = &halves{pools: newPools(), now: func() int64 { return *now }, lost: func() { *lost++ }}
	h.sweep = time.AfterFunc(time.Hour, func() {}) // no other clock sweeps
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

// FuzzHalves: whatever halves come, over whatever paths, only two of one packet and path are joined, and little is held.
func FuzzHalves(f *testing.F) {
	f.Add([]byte{0, 1, 10, 1, 1, 10, 0, 2, 200, 9, 0, 0, 1, 2, 200})
	f.Add([]byte{0, 0, 255, 4, 0, 255, 0, 64, 255, 1, 0, 255, 8, 3, 1, 12, 3, 1})
	f.Fuzz(func(t *testing.T, script []byte) {
		h, now, lost := testHalves()
		sinks := [2]*DatagramSink{{}, {}}
		type key struct {
			sink, id int
		}
		kept, met := 0, 0
		last := map[key]byte{} // the kind of the last half that came
		for ; len(script) > 2; script = script[3:] {
			op, id, n := script[0], int(script[1])%(2*maxHalves), 1+256*int(script[2])
			sink := int(op>>2) % 2
			if op%16 == 9 {
				*now += int64(n) * 1e6
				h.expire()
				continue
			}
			kind := byte(kindFirst)
			if op%2 == 1 {
				kind = kindSecond
			}
			p := h.match(sinks[sink], kind, uint16(id), make([]byte, n))
			if p == nil {
				kept++
				last[key{sink, id}] = kind
			} else {
				met++
				if last[key{sink, id}]^kind != eitherHalf {
					t.Fatalf("a half of kind %d met one of kind %d", kind, last[key{sink, id}])
				}
				delete(last, key{sink, id})
				h.pools.put(p)
			}
			if h.waiting() > maxHalves {
				t.Fatalf("%d wait", h.waiting())
			}
		}
		h.close()
		if kept-met != *lost {
			t.Fatalf("%d were kept, %d met, %d are counted as lost", kept, met, *lost)
		}
	})
}
