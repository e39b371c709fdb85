package flight

import (
	"crypto/tls"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"edgemesh/test/lab/link"
	"edgemesh/tunnel/p2p/carrier/sealed"
	"edgemesh/tunnel/pull"
)

// BenchmarkPacket is what one packet costs both ends: made, sealed, opened, taken and acknowledged. Lost: 0 or 1 of 100.
func BenchmarkPacket(b *testing.B) {
	for _, c := range []struct {
		name   string
		lost   int
		sealed bool
	}{{"clean", 0, false}, {"lossy", 100, false}, {"sealed", 0, true}} {
		b.Run(c.name, func(b *testing.B) {
			d := link.Direction{}
			l := newLab(b, d, d, 1)
			secret := make([]byte, sealed.SecretLen)
			var seal [2]*sealed.Sealer
			var open [2]*sealed.Opener
			for i, e := range l.e {
				seal[i], _ = sealed.NewSealer(tls.TLS_AES_128_GCM_SHA256, secret, 1)
				open[i], _ = sealed.NewOpener(tls.TLS_AES_128_GCM_SHA256, secret)
				e.sink.cheap = true
			}
			s := l.e[0].source
			s.endless = 8
			s.size = func(*rand.Rand) int { return 8 << 10 }
			for i := range 8 {
				s.add(i, 1)
			}
			flat := &flatSource{s: s}
			l.e[0].peer.out.source = flat
			var flying [2][][]byte
			var buf []byte
			packets, step := 0, 0
			run := func(n int) {
				for packets = 0; packets < n; step++ {
					now := float64(step) * 0.001
					for i, e := range l.e {
						for range 64 {
							payload, _ := e.path.Next(now, e.number, buf[:0], testRoom)
							buf = payload
							if len(payload) == 0 {
								break
							}
							packets += 1 - i
							k := len(flying[i])
							if k < cap(flying[i]) {
								flying[i] = flying[i][:k+1]
							} else {
								flying[i] = append(flying[i], make([]byte, 0, 1600))
							}
							p := flying[i][k][:0]
							if c.sealed {
								p, _ = seal[i].Seal(p, payload)
							} else {
								p = append(binary.BigEndian.AppendUint64(append(p, 0, 0, 0, 0), e.number), payload...)
							}
							flying[i][k] = p
							e.number++
						}
					}
					now += 0.0005
					for i := range l.e {
						for _, p := range flying[i] {
							number := binary.BigEndian.Uint64(p[4:])
							if c.lost > 0 && i == 0 && number%uint64(c.lost) == 0 {
								continue
							}
							payload := p[12:]
							if c.sealed {
								payload, _ = open[i].Open(p)
							}
							l.e[1-i].path.Receive(number, payload, now, now)
						}
						flying[i] = flying[i][:0]
					}
				}
			}
			run(20_000) // until rings and lists have grown
			measure(b, func() { run(b.N) })
		})
	}
}

// BenchmarkDatagram is what a packet of the same size costs both ends without a transport, as the agent's datagrams leave now.
func BenchmarkDatagram(b *testing.B) {
	secret, payload := make([]byte, sealed.SecretLen), make([]byte, testRoom)
	seal, _ := sealed.NewSealer(tls.TLS_AES_128_GCM_SHA256, secret, 1)
	open, _ := sealed.NewOpener(tls.TLS_AES_128_GCM_SHA256, secret)
	buf := make([]byte, 0, 1600)
	measure(b, func() {
		for range b.N {
			p, _ := seal.Seal(buf, payload)
			if _, err := open.Open(p); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// measure measures processor time, too: other programs do not count in it.
func measure(b *testing.B, f func()) {
	used := func() int64 {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	b.ReportAllocs()
	b.SetBytes(testRoom)
	b.ResetTimer()
	before := used()
	f()
	b.ReportMetric(float64(used()-before)/float64(b.N), "cpu-ns/op")
}

// flatSource gives the same frames again and again: making them is not to be measured.
type flatSource struct {
	s     *testSource
	spare []*flatFrame
	turn  int
}

type flatFrame struct {
	b    []byte
	from *flatSource
}

func (f *flatFrame) Bytes() []byte { return f.b }
func (f *flatFrame) Done()         { f.from.spare = append(f.from.spare, f) }

func (f *flatSource) Waits() (bool, bool)          { return true, false }
func (f *flatSource) Datagram(float64, int) []byte { return nil }
func (f *flatSource) Stream(float64) (pull.Frame, int) {
	f.turn = (f.turn + 1) % 8
	if n := len(f.spare); n > 0 {
		x := f.spare[n-1]
		f.spare = f.spare[:n-1]
		return x, f.turn
	}
	return &flatFrame{make([]byte, 8<<10), f}, f.turn
}

// BenchmarkHole: pieces of one byte behind a hole, each in front of all those before, or at both ends in turns, so that much would have to be
// moved.
func BenchmarkHole(b *testing.B) {
	for name, at := range map[string]func(i int) uint32{
		"in order":      func(i int) uint32 { return uint32(2 + 2*i) },
		"descending":    func(i int) uint32 { return uint32(2 * (bucketParts - i)) },
		"to the middle": func(i int) uint32 { return uint32(bucketParts + (1-2*(i%2))*(i+1)/2*2) },
	} {
		b.Run(name, func(b *testing.B) {
			sink := &testSink{cheap: true}
			var path *Path
			var number uint64
			for i := range b.N {
				if i%(bucketParts/2) == 0 {
					path, number = NewPeer(newSource(nil, 1), sink, NewMemory(64<<20)).NewPath(testOverhead), 0
				}
				f := appendStreamHeader(nil, stream{offset: at(i % (bucketParts / 2))}, 1)
				path.Receive(number, append(f, 1), 0, 0)
				number++
			}
		})
	}
}
