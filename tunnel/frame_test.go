package tunnel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"edgemesh/tunnel/epoch"
	"edgemesh/tunnel/inet/inettest"
	"edgemesh/tunnel/virtio"
)

func TestHello(t *testing.T) {
	in := hello{DatagramLane, epoch.Carrier{Nonce: 0xfedcba9876543210, Epoch: 7, After: 6}}
	b := appendHello(nil, in)
	typ, n := frameHdr(b)
	if typ != frameHello || n != len(b)-frameHdrLen {
		t.Fatalf("header says type %d, %d bytes", typ, n)
	}
	body := b[frameHdrLen:]
	if out, err := parseHello(body); err != nil || out != in {
		t.Errorf("%+v, %v", out, err)
	}
	if out, err := parseHello(append(bytes.Clone(body), 1, 2, 3)); err != nil || out != in { // later fields
		t.Errorf("%+v, %v", out, err)
	}
	for name, c := range map[string]struct {
		body []byte
		want error
	}{
		"empty":      {nil, ErrMalformed},
		"short":      {body[:27], ErrMalformed},
		"version":    {inettest.With(bytes.Clone(body), 0, 2), ErrVersion},
		"epoch 0":    {inettest.With(bytes.Clone(body), 12, make([]byte, 16)...), ErrMalformed},
		"after self": {inettest.With(bytes.Clone(body), 20, body[12:20]...), ErrMalformed},
	} {
		if _, err := parseHello(c.body); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// chopped reads b in pieces of random length.
type chopped struct {
	b   []byte
	rnd *rand.Rand
	max int
}

func (c *chopped) Read(p []byte) (int, error) {
	if len(c.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.b[:min(len(c.b), 1+c.rnd.IntN(c.max))])
	c.b = c.b[n:]
	return n, nil
}

// TestFrameReader: whatever the pieces, the frames come out as they went in.
func TestFrameReader(t *testing.T) {
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		var wire []byte
		var bodies [][]byte
		for range []int{4, 60, 60, 60}[seed%4] {
			body := make([]byte, []int{rnd.IntN(3), rnd.IntN(1600), rnd.IntN(virtio.MaxFrame), virtio.MaxFrame}[rnd.IntN(4)])
			for i := range body {
				body[i] = byte(rnd.Uint32())
			}
			bodies = append(bodies, body)
			wire = append(binary.BigEndian.AppendUint32(wire, uint32(framePacket)<<24|uint32(len(body))), body...)
		}
		f := newFrameReader(&chopped{wire, rnd, []int{1, 3000, 70000, 1 << 20}[seed%4]}, newPools())
		for i, want := range bodies {
			typ, got, err := f.next()
			if err != nil || typ != framePacket || !bytes.Equal(got, want) {
				t.Fatalf("seed %d, frame %d: type %d, %d bytes, %v; want %d bytes", seed, i, typ, len(got), err, len(want))
			}
		}
		if _, _, err := f.next(); !errors.Is(err, io.EOF) {
			t.Fatalf("at the end: %v", err)
		}
		f.release()
	}
}

// TestFrameReaderParks: a stream that waits holds no big buffer.
func TestFrameReaderParks(t *testing.T) {
	r, w := io.Pipe()
	frame := func(n int) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(framePacket)<<24|uint32(n)), make([]byte, n)...)
	}
	go func() {
		_, _ = w.Write(frame(60000))
		_, _ = w.Write(frame(100))
		_, _ = w.Write(frame(100))
		_ = w.CloseWithError(io.ErrClosedPipe)
	}()
	f := newFrameReader(r, newPools())
	for i, big := range []bool{true, true, false} {
		if _, _, err := f.next(); err != nil || (f.big != nil) != big {
			t.Errorf("frame %d: big buffer %v, err %v", i, f.big != nil, err)
		}
	}
	if _, _, err := f.next(); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("err %v", err)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(appendHello(nil, hello{carrier: epoch.Carrier{Epoch: 1}}), uint64(1))
	f.Add([]byte{2, 0, 0, 3, 1, 2, 3, 3, 0, 0, 0}, uint64(2))
	f.Add([]byte{2, 1, 0, 50}, uint64(3))
	f.Add([]byte{2, 255, 255, 255}, uint64(4))
	ps := newPools()
	f.Fuzz(func(t *testing.T, wire []byte, seed uint64) {
		r := newFrameReader(&chopped{wire, rand.New(rand.NewPCG(seed, 0)), 1 + int(seed%5000)}, ps)
		defer r.release()
		for rest := wire; ; {
			typ, body, err := r.next()
			if err != nil { // as a look at the rest says
				switch {
				case len(rest) == 0 && errors.Is(err, io.EOF):
				case len(rest) >= 4 && errors.Is(err, ErrMalformed) && int(binary.BigEndian.Uint32(rest)&0xffffff) > virtio.MaxFrame:
				case len(rest) > 0 && errors.Is(err, io.ErrUnexpectedEOF):
				default:
					t.Fatalf("%v with % x left", err, rest)
				}
				return
			}
			n := frameHdrLen + len(body)
			if byte(typ) != rest[0] || !bytes.Equal(body, rest[frameHdrLen:n]) {
				t.Fatalf("type %d, % x; want % x", typ, body, rest)
			}
			_, _ = parseHello(body)
			rest = rest[n:]
		}
	})
}
