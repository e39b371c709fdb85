package tunnel

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/virtio"
)

// sendFrames puts frames through the joiner as they lie in a read buffer, and
// returns what the device would be given.
func sendFrames(t *testing.T, frames [][]byte) (out [][]byte) {
	t.Helper()
	ps := newPools()
	f := newFrameReader(bytes.NewReader(slices.Concat(frames...)), ps)
	defer f.release()
	var j tcpJoiner
	take := func(b []byte) {
		if b != nil {
			out = append(out, slices.Clone(b))
		}
	}
	for range frames {
		_, b, err := f.next()
		if err != nil {
			t.Fatal(err)
		}
		var h inet.Header
		if err := h.Parse(b[virtio.HeaderLen:], 0); err != nil || !virtio.Get(b).Valid(&h, b[virtio.HeaderLen:]) {
			t.Fatalf("test packet: %v", err)
		}
		if !j.join(b, &h) {
			take(j.frame())
			if !j.hold(f.rest(len(b)), len(b), &h) {
				take(b)
			}
		}
		if !f.ready() {
			take(j.frame())
		}
	}
	return out
}

func streamByte(seq uint32) byte { return byte(seq * 31 >> 3) }

// segment is a packet of a flow whose payload says where in the stream it is.
func segment(version int, seq uint32, n, size int, edit func(ip []byte, l4 int)) []byte {
	p := super(version, n, size, 0x10)
	ip := p.ip()
	l4 := map[int]int{4: 20, 6: 40}[version]
	binary.BigEndian.PutUint32(ip[l4+4:], seq)
	for i := range ip[l4+20:] {
		ip[l4+20+i] = streamByte(seq + uint32(i))
	}
	if n <= size {
		virtio.Header{Flags: virtio.NeedsChecksum, CsumStart: uint16(l4), CsumOffset: inet.TCPChecksum}.Put(p.buf[frameHdrLen:])
	}
	if version == 4 {
		ip[6] = 0x40 // don't fragment
	}
	if edit != nil {
		edit(ip, l4)
	}
	if version == 4 {
		inet.SetChecksum4(ip)
	}
	return p.frame()
}

// Whatever is joined, the stream stays the same, byte for byte.
func TestJoinKeepsTheStream(t *testing.T) {
	for _, version := range []int{4, 6} {
		var frames [][]byte
		seq := uint32(1<<32 - 100_000) // wraps around
		start := seq
		for range 400 {
			n := 1000 * (1 + rand.IntN(20))
			if rand.IntN(4) == 0 {
				n -= rand.IntN(900)
			}
			frames = append(frames, segment(version, seq, n, 1000, func(ip []byte, l4 int) {
				if rand.IntN(10) == 0 {
					ip[l4+13] |= inet.PSH
				}
			}))
			seq += uint32(n)
		}
		out := sendFrames(t, frames)
		if len(out) > 300 || len(out) < 60 {
			t.Errorf("version %d: %d packets became %d", version, len(frames), len(out))
		}
		at := start
		for _, b := range out {
			ip := b[virtio.HeaderLen:]
			var h inet.Header
			if err := h.Parse(ip, 0); err != nil || !virtio.Get(b).Valid(&h, ip) {
				t.Fatalf("version %d: %v, %+v", version, err, virtio.Get(b))
			}
			p := &packet{buf: append(make([]byte, frameHdrLen), b...), n: frameHdrLen + len(b)}
			checksumsRight(t, p)
			if got := binary.BigEndian.Uint32(ip[h.L4+4:]); got != at {
				t.Fatalf("version %d: sequence number %d, want %d", version, got, at)
			}
			for _, c := range ip[h.L4+h.L4Len:] {
				if c != streamByte(at) {
					t.Fatalf("version %d: wrong byte at %d", version, at)
				}
				at++
			}
		}
		if at != seq {
			t.Errorf("version %d: the stream ends at %d, want %d", version, at, seq)
		}
	}
}

// What the kernel's GRO would not join is not joined here.
func TestJoinRefuses(t *testing.T) {
	first := func() []byte { return segment(4, 1000, 2000, 1000, nil) }
	for name, second := range map[string][]byte{
		"a gap":          segment(4, 3001, 2000, 1000, nil),
		"another size":   segment(4, 3000, 2000, 900, nil),
		"a longer one":   segment(4, 3000, 1001, 1001, nil),
		"another ack":    segment(4, 3000, 2000, 1000, func(ip []byte, l4 int) { ip[l4+8] = 9 }),
		"another window": segment(4, 3000, 2000, 1000, func(ip []byte, l4 int) { ip[l4+15] = 9 }),
		"another port":   segment(4, 3000, 2000, 1000, func(ip []byte, l4 int) { ip[l4] = 9 }),
		"another source": segment(4, 3000, 2000, 1000, func(ip []byte, _ int) { ip[15] = 9 }),
		"another TTL":    segment(4, 3000, 2000, 1000, func(ip []byte, _ int) { ip[8] = 9 }),
		"a mark":         segment(4, 3000, 2000, 1000, func(ip []byte, _ int) { ip[1] = 3 }),
		"SYN":            segment(4, 3000, 2000, 1000, func(ip []byte, l4 int) { ip[l4+13] |= inet.SYN }),
		"CWR":            segment(4, 3000, 2000, 1000, func(ip []byte, l4 int) { ip[l4+13] |= inet.CWR }),
		"an ID":          segment(4, 3000, 2000, 1000, func(ip []byte, _ int) { ip[6], ip[4] = 0, 77 }),
		"IPv6":           segment(6, 3000, 2000, 1000, nil),
		"too much":       segment(4, 3000, 64000, 1000, nil),
	} {
		if out := sendFrames(t, [][]byte{first(), second}); len(out) != 2 {
			t.Errorf("%s: %d packets", name, len(out))
		}
	}
	for name, edit := range map[string]func(ip []byte, l4 int){
		"PSH": func(ip []byte, l4 int) { ip[l4+13] |= inet.PSH },
		"FIN": func(ip []byte, l4 int) { ip[l4+13] |= inet.FIN },
	} {
		one := segment(4, 1000, 2000, 1000, edit)
		if out := sendFrames(t, [][]byte{one, segment(4, 3000, 2000, 1000, nil)}); len(out) != 2 {
			t.Errorf("something was joined behind %s", name)
		}
		if out := sendFrames(t, [][]byte{first(), segment(4, 3000, 2000, 1000, edit)}); len(out) != 1 {
			t.Errorf("%s at the end was not joined", name)
		} else if flags := out[0][virtio.HeaderLen+20+13]; flags&(inet.FIN|inet.PSH) == 0 {
			t.Errorf("%s was lost", name)
		}
	}
}
