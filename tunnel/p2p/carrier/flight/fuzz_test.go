package flight

import (
	"bytes"
	"testing"
)

// FuzzFrames: what a frame's parser takes, its maker makes again.
func FuzzFrames(f *testing.F) {
	for _, b := range frames() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		var made, rest []byte
		ok := false
		switch b[0] {
		case kindStream:
			var s stream
			if s, rest, ok = parseStream(b); ok {
				made = append(appendStreamHeader(nil, s, len(s.data)), s.data...)
			}
		case kindDatagram:
			var d []byte
			if d, rest, ok = parseDatagram(b); ok {
				made = appendDatagram(nil, d)
			}
		case kindAck:
			var a ack
			if rest, ok = a.parse(b); ok {
				made = a.append(nil)
			}
		case kindParity:
			var s sum
			if rest, ok = s.parse(b); ok {
				made = s.append(nil)
			}
		}
		if ok && !bytes.Equal(append(made, rest...), b) {
			t.Fatalf("%x is made again as %x and %x", b, made, rest)
		}
	})
}

// frames are one of each kind.
func frames() [][]byte {
	a := ack{newest: 20, arrived: 60_000, got: 20_000, n: 2}
	a.runs[0], a.runs[1] = run{0, 5}, run{2, 4}
	s := sum{newest: 3, mask: 7, length: 12, data: make([]byte, 12)}
	return [][]byte{append(appendStreamHeader(nil, stream{bucket: 3, offset: 2}, 4), "abcd"...), appendDatagram(nil, []byte("abc")), a.append(nil), s.append(nil)}
}

// FuzzReceive hands packets to a path that has some in flight. Each begins with how much its number is above the one before, how
// late it is, and its length. Whatever is in them, what is counted stays right and bounded.
func FuzzReceive(f *testing.F) {
	packet := func(number, late byte, frames ...[]byte) []byte {
		b := bytes.Join(frames, nil)
		return append([]byte{number, late, byte(len(b) >> 8), byte(len(b))}, b...)
	}
	all := frames()
	for _, b := range all {
		f.Add(packet(1, 0, b))
	}
	f.Add(append(packet(1, 0, all[1], all[2], all[0]), packet(200, 9, all[2], all[3])...))
	f.Add(append(packet(4, 0, all[3], all[0]), packet(0, 255, all[0])...))
	f.Fuzz(func(t *testing.T, b []byte) {
		source := newSource(t, 1)
		source.endless = 3
		for i := range 3 {
			source.add(i, 1)
		}
		peer := NewPeer(source, &testSink{t: t, cheap: true}, NewMemory(64<<20))
		path, next := peer.NewPath(testOverhead), uint64(0)
		send := func(now float64) {
			for {
				payload, _ := path.Next(now, next, nil, testRoom)
				if next++; len(payload) == 0 {
					return
				}
			}
		}
		now, number := 0.0, uint64(0)
		for ; now < 0.2; now += 0.01 {
			send(now)
		}
		for len(b) >= 4 && now < 30 {
			number += uint64(b[0])
			now += float64(b[1]) / 1000
			n := min(int(b[2])<<8|int(b[3]), len(b)-4)
			path.Receive(number, bytes.Clone(b[4:4+n]), now, now)
			b = b[4+n:]
			send(now)
		}
		consistent(t, path)
		path.Close()
		consistent(t, path)
	})
}
