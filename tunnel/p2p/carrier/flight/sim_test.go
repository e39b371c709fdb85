package flight

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"time"

	"edgemesh/test/lab/link"
	"edgemesh/tunnel/pull"
)

const (
	testOverhead = 70 // of sealing, UDP, IPv4 and Ethernet
	testRoom     = 1500 - 56
)

// tb is what testing and rapid have in common.
type tb interface {
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// testFrame is length 4, bucket 1, number 4, then bytes that follow from both.
type testFrame struct {
	b      []byte
	source *testSource
}

func (f *testFrame) Bytes() []byte { return f.b }
func (f *testFrame) Done() {
	f.source.done++
	f.source.spare = append(f.source.spare, f)
}

// testSource has frames, and datagrams.
type testSource struct {
	t         tb
	rng       *rand.Rand
	left      [pull.Buckets]int // frames to come
	number    [pull.Buckets]uint32
	total     int // frames
	size      func(*rand.Rand) int
	endless   int                   // buckets that never end
	allowed   func(now float64) int // bytes that an application has written; nil: all
	written   int
	datagrams []uint32 // to be sent
	buf       []byte
	done      int
	spare     []*testFrame
	turn      int
	now       float64
}

func newSource(t tb, seed uint64) *testSource {
	return &testSource{t: t, rng: rand.New(rand.NewPCG(seed, 5)), size: func(r *rand.Rand) int { return 40 + r.IntN(3000) }}
}

func (s *testSource) add(bucket, frames int) { s.left[bucket] += frames; s.total += frames }

func (s *testSource) Waits() (bool, bool) {
	return s.total > 0 && (s.allowed == nil || s.written < s.allowed(s.now)), len(s.datagrams) > 0
}

func (s *testSource) Stream(now float64) (pull.Frame, int) {
	s.now = now
	if waits, _ := s.Waits(); !waits {
		return nil, 0
	}
	for {
		s.turn = (s.turn + 1) % pull.Buckets
		if s.left[s.turn] > 0 {
			break
		}
	}
	i := s.turn
	if i >= s.endless {
		s.left[i]--
		s.total--
	}
	n := s.size(s.rng)
	s.written += n
	var f *testFrame
	if k := len(s.spare); k > 0 {
		f = s.spare[k-1]
		s.spare = s.spare[:k-1]
	} else {
		f = &testFrame{source: s}
	}
	f.b = fillFrame(f.b[:0], i, s.number[i], n)
	s.number[i]++
	return f, i
}

// pattern is what frames are filled with.
var pattern = func() (b [16 << 10]byte) {
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}()

func fillFrame(b []byte, bucket int, number uint32, n int) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	b = append(b, byte(bucket))
	b = binary.BigEndian.AppendUint32(b, number)
	from := int(number*31+uint32(bucket)*7) % 4096
	return append(b, pattern[from:from+n-len(b)]...)
}

func (s *testSource) Datagram(_ float64, room int) []byte {
	if len(s.datagrams) == 0 || room < 200 {
		return nil
	}
	s.buf = append(binary.BigEndian.AppendUint32(s.buf[:0], s.datagrams[0]), make([]byte, 196)...)
	s.datagrams = s.datagrams[1:]
	return s.buf
}

// testSink checks that each bucket's frames come whole, once and in order. Only after a restart may some be missing.
type testSink struct {
	t         tb
	partial   [pull.Buckets][]byte
	number    [pull.Buckets]uint32
	restarted [pull.Buckets]bool
	restarts  int
	skipped   int
	frames    int
	bytes     int
	got       map[uint32]int // datagrams
	onFrame   func(bucket int, number uint32)
	cheap     bool
	reference []byte
}

func (s *testSink) Restart(bucket int) {
	if !s.restarted[bucket] { // of one that is given up, and then begins again, it is said twice
		s.restarts++
	}
	s.restarted[bucket] = true
	s.partial[bucket] = s.partial[bucket][:0]
}

func (s *testSink) Datagram(b []byte) {
	if len(b) < 4 {
		return
	}
	if s.got == nil {
		s.got = map[uint32]int{}
	}
	s.got[binary.BigEndian.Uint32(b)]++
}

func (s *testSink) Stream(bucket int, b []byte) (begun int) {
	s.bytes += len(b)
	if s.cheap {
		return 0
	}
	p := append(s.partial[bucket], b...)
	for len(p) >= 9 {
		n := int(binary.BigEndian.Uint32(p))
		if n > 70000 || int(p[4]) != bucket {
			s.t.Fatalf("bucket %d is out of step", bucket)
		}
		if len(p) < n {
			break
		}
		number := binary.BigEndian.Uint32(p[5:])
		if s.reference = fillFrame(s.reference[:0], bucket, number, n); !bytes.Equal(s.reference, p[:n]) {
			s.t.Fatalf("bucket %d: frame %d is damaged", bucket, number)
		}
		if number != s.number[bucket] && (!s.restarted[bucket] || number < s.number[bucket]) {
			s.t.Fatalf("bucket %d: frame %d, wanted %d", bucket, number, s.number[bucket])
		}
		s.skipped += int(number - s.number[bucket])
		s.restarted[bucket] = false
		s.number[bucket] = number + 1
		s.frames++
		if s.onFrame != nil {
			s.onFrame(bucket, number)
		}
		p = p[n:]
	}
	s.partial[bucket] = append(s.partial[bucket][:0], p...)
	return len(p)
}

// end is one of two peers.
type end struct {
	peer   *Peer
	source *testSource
	sink   *testSink
	path   *Path
	number uint64
	wake   float64
	out    *link.Queue
	room   int
	buf    []byte
}

// lab is two peers and the path between them, on a clock of its own.
type lab struct {
	t   tb
	now float64
	e   [2]*end
	// filter, if there is one, says whether a packet that left is lost, and may change it.
	filter func(from int, number uint64, payload []byte) bool
	steps  int
	skip   int // every so many packets a number is not used; 0: all are
}

func newLab(t tb, there, back link.Direction, seed uint64) *lab {
	l := &lab{t: t}
	for i := range l.e {
		e := &end{source: newSource(t, seed+uint64(i)), sink: &testSink{t: t}, room: testRoom}
		e.peer = NewPeer(e.source, e.sink, NewMemory(64<<20))
		l.e[i] = e
	}
	l.connect(there, back, seed)
	return l
}

// connect makes a new path; the one before it ends with all that is on it.
func (l *lab) connect(there, back link.Direction, seed uint64) {
	for i, e := range l.e {
		if e.path != nil {
			e.path.Close()
		}
		e.path, e.number, e.wake = e.peer.NewPath(testOverhead), 0, l.now
		e.out = link.NewQueue([]link.Direction{there, back}[i], seed+uint64(i), maxPayload+testOverhead+16)
	}
}

func (l *lab) duration() time.Duration { return time.Duration(l.now * 1e9) }

// run continues until a time, or until stop says so.
func (l *lab) run(until float64, stop func() bool) {
	for l.now < until && (stop == nil || !stop()) {
		l.steps++
		next := until
		for i, e := range l.e {
			e.source.now = l.now
			for l.now >= e.wake {
				payload, wait := e.path.Next(l.now, e.number, e.buf[:0], e.room)
				e.buf = payload
				if len(payload) == 0 {
					if !(wait > 0 && wait <= longestWait) {
						l.t.Fatalf("waits %v s", wait)
					}
					e.wake = l.now + wait
					break
				}
				if len(payload) > e.room {
					l.t.Fatalf("%d bytes of payload where %d have room", len(payload), e.room)
				}
				if l.filter == nil || l.filter(i, e.number, payload) {
					b := e.out.Buffer()[:len(payload)+testOverhead]
					binary.BigEndian.PutUint64(b, e.number)
					copy(b[testOverhead:], payload)
					e.out.Push(l.duration(), b)
				}
				e.number++
				if l.skip > 0 && e.number%uint64(l.skip) == 0 {
					e.number++
				}
			}
			next = min(next, e.wake)
		}
		for i, e := range l.e {
			to := l.e[1-i]
			for {
				b, at := e.out.Pop(l.duration())
				if b == nil {
					break
				}
				to.path.Receive(binary.BigEndian.Uint64(b), b[testOverhead:], at.Seconds(), l.now)
				e.out.Free(b)
				if wait, quiet := to.path.Quiet(l.now); quiet {
					to.wake = min(to.wake, l.now+wait)
				} else {
					to.wake = l.now
				}
				next = l.now
			}
			if at, ok := e.out.Next(); ok {
				next = min(next, max(at.Seconds(), l.now)+1e-6)
			}
		}
		l.now = max(next, l.now+1e-9)
	}
}

func direction(mbit float64, ms int, loss float64) link.Direction {
	return link.Direction{Rate: int64(mbit * 1e6), QueueTime: 200 * time.Millisecond, Delay: time.Duration(ms) * time.Millisecond, Loss: loss}
}

// whole checks that all frames have arrived, and that nothing is held any longer.
func (l *lab) whole() {
	l.t.Helper()
	for i, e := range l.e {
		to := l.e[1-i]
		for b := range pull.Buckets {
			if e.source.left[b] > 0 || to.sink.number[b] != e.source.number[b] {
				l.t.Errorf("end %d, bucket %d: %d frames of %d arrived, %d not sent", i, b, to.sink.number[b], e.source.number[b], e.source.left[b])
			}
		}
		if sending, receiving := e.peer.Held(); sending != 0 || receiving != 0 {
			l.t.Errorf("end %d holds %d and %d bytes", i, sending, receiving)
		}
		if e.peer.Refused() != (Refused{}) {
			e.peer.refused[Repeated] = 0
			if e.peer.Refused() != (Refused{}) {
				l.t.Errorf("end %d refused %v", i, e.peer.Refused())
			}
		}
	}
}

// finished says whether both have sent all, and know that it arrived.
func (l *lab) finished() bool {
	for _, e := range l.e {
		if sending, _ := e.peer.Held(); sending > 0 || e.source.total > 0 && e.source.endless == 0 {
			return false
		}
	}
	return true
}

// consistent checks what is counted, and that rate and window are some.
func (l *lab) consistent() {
	l.t.Helper()
	for _, e := range l.e {
		consistent(l.t, e.path)
	}
}

func consistent(t tb, p *Path) {
	t.Helper()
	s, out, in := &p.s, &p.peer.out, &p.peer.in
	if rate, window := s.control.Rate(s.inFlight), s.control.Window(); !(rate > 0 && window > 0) || math.IsInf(rate+window, 0) {
		t.Fatalf("rate %v, window %v", rate, window)
	}
	inFlight, pieces := 0.0, map[*frame]int{}
	count := func(c chain) {
		for x := c.first; x != nil; x = x.next {
			pieces[x.frame] += x.n
		}
	}
	for n := s.base; n < s.next; n++ {
		if r := s.record(n); r.state == flying {
			inFlight += float64(r.size)
			count(r.pieces)
			if n < s.first {
				t.Fatalf("packet %d is in flight, and below %d", n, s.first)
			}
		}
	}
	count(out.again)
	count(out.unsent)
	held := 0
	for i := range out.buckets {
		for f := out.buckets[i].first; f != nil; f = f.next {
			held += len(f.data)
			if f.left != pieces[f] || f.dead {
				t.Fatalf("%d bytes of a frame are not acknowledged, %d on their way", f.left, pieces[f])
			}
			delete(pieces, f)
		}
	}
	for f, n := range pieces {
		if !f.dead || f.left != n {
			t.Fatalf("pieces of a frame that no bucket has: %d bytes, %d left", n, f.left)
		}
	}
	if s.inFlight != inFlight || out.held.bytes != held || held > maxHeld+70000 {
		t.Fatalf("%v bytes in flight, counted %v; %d held, counted %d", s.inFlight, inFlight, out.held.bytes, held)
	}
	held, begun, parcels := 0, 0, map[*parcel]int{}
	for i := range in.buckets {
		b := &in.buckets[i]
		n, last := 0, b.next
		for _, row := range b.later.rows {
			for _, x := range row {
				n++
				held += pieceCost
				parcels[x.in]++
				if d := int32(x.offset - last); d < 0 || d == 0 && n == 1 {
					t.Fatalf("bucket %d: part %d at %d behind %d", i, n, x.offset, last)
				}
				last = x.offset
			}
			if len(row) == 0 || len(row) > rowParts {
				t.Fatalf("bucket %d: a row of %d parts", i, len(row))
			}
		}
		if begun += b.begun; n != b.later.n {
			t.Fatalf("bucket %d: %d parts, counted %d", i, n, b.later.n)
		}
	}
	for c, n := range parcels {
		if held += len(c.buf); n != c.refs {
			t.Fatalf("%d parts of a packet, counted %d", c.refs, n)
		}
	}
	if in.held.bytes != held || held > maxKept {
		t.Fatalf("%d bytes behind holes, counted %d", held, in.held.bytes)
	}
	if in.begun.bytes != begun {
		t.Fatalf("%d bytes of frames that have begun, counted %d", begun, in.begun.bytes)
	}
}
