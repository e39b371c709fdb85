package flight

import (
	"encoding/hex"
	"testing"

	"pgregory.net/rapid"
)

// The bytes on the wire stay as they are: both ends of a cluster need not have the same version.
func TestGolden(t *testing.T) {
	a := ack{newest: 0xfffffffe, arrived: 0xffffffff, delay: 12, got: 1<<32 + 5, computed: 7, n: 2}
	a.runs[0], a.runs[1] = run{0, 3}, run{2, 65535}
	s := sum{newest: 0xffffffff, mask: 0x80000001, length: 0x1234, data: []byte{0xaa, 0xbb}}
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"STREAM", append(appendStreamHeader(nil, stream{bucket: 127, generation: 255, offset: 0xfffffffd}, 5), "abcde"...), "017ffffffffffd0005" + "6162636465"},
		{"DATAGRAM", appendDatagram(nil, []byte{1, 2, 3}), "020003" + "010203"},
		{"ACK", a.append(nil), "03fffffffeffffffff000c000000010000000500000007" + "02" + "00000003" + "0002ffff"},
		{"PARITY", s.append(nil), "04ffffffff80000001" + "1234" + "0002" + "aabb"},
	} {
		if got := hex.EncodeToString(c.got); got != c.want {
			t.Errorf("%s is %s, was %s", c.name, got, c.want)
		}
	}
}

func TestExpand(t *testing.T) {
	for _, c := range []struct {
		near uint64
		low  uint32
		want uint64
	}{
		{0, 5, 5}, {1 << 32, 0xffffffff, 1<<32 - 1}, {1<<32 - 1, 3, 1<<32 + 3}, {5<<32 + 7, 7, 5<<32 + 7}, {5<<32 + 7, 0x80000006, 5<<32 + 0x80000006},
	} {
		if got := expand(c.near, c.low); got != c.want {
			t.Errorf("%x near %x is %x, wanted %x", c.low, c.near, got, c.want)
		}
	}
}

// A window is a set of the last numbers.
func TestWindow(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var w window
		at := rapid.SampledFrom([]uint64{0, 1<<32 - 50, windowLen - 10}).Draw(r, "first")
		have, newest := map[uint64]bool{}, uint64(0)
		for range rapid.IntRange(1, 300).Draw(r, "numbers") {
			n := at + uint64(rapid.IntRange(0, 100).Draw(r, "n"))
			switch rapid.IntRange(0, 30).Draw(r, "jump") {
			case 0:
				at += uint64(rapid.IntRange(0, 3*windowLen).Draw(r, "far"))
			case 1, 2, 3:
				at += 64
			}
			newest = max(newest, n)
			if got, want := w.add(n), !have[n] && newest-n < windowLen-64; got != want {
				r.Fatalf("%d is new: %v, wanted %v", n, got, want)
			}
			have[n] = true
		}
		for n, in := newest, true; ; in = !in {
			count := w.down(n, in)
			for i := range count {
				if w.has(n-i) != in || have[n-i] != in {
					r.Fatalf("%d is in: %v", n-i, have[n-i])
				}
			}
			if count > n || newest-(n-count) >= windowLen-64 {
				break
			}
			if n -= count; w.has(n) == in {
				r.Fatalf("%d was not counted", n)
			}
		}
	})
}
