package mux

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	tmux "github.com/libp2p/go-libp2p/p2p/muxer/testsuite"
	"github.com/libp2p/go-yamux/v5"
	"go.uber.org/goleak"

	"edgemesh/internal/tcptest"
	"edgemesh/test/fair"
)

func config() *yamux.Config {
	c := yamux.DefaultConfig()
	c.LogOutput = io.Discard
	c.ReadBufSize = 0
	c.MaxMessageSize = 16 << 10
	c.InitialStreamWindowSize = 16 << 20
	return c
}

func TestSuite(t *testing.T) {
	// As for libp2p's own yamux: streams beyond the backlog are reset.
	delete(tmux.Subtests, "github.com/libp2p/go-libp2p-testing/suites/mux.SubtestStress1Conn1000Stream10Msg")
	// 50,000 streams within 10 s: TestOpenStreams has them without a clock.
	delete(tmux.Subtests, "github.com/libp2p/go-libp2p/p2p/muxer/testsuite.SubtestStreamOpenStress")
	tmux.SubtestAll(t, New(config()))
}

// Streams that are opened and closed at both ends, several at a time, all arrive and end.
func TestOpenStreams(t *testing.T) {
	const workers, each = 5, 1000
	a, b := net.Pipe()
	m := New(config())
	here, err := m.NewConn(a, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	there, err := m.NewConn(b, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	var arrived atomic.Int64
	var accepting, opening sync.WaitGroup
	accepting.Go(func() {
		for {
			s, err := there.AcceptStream()
			if err != nil {
				return
			}
			arrived.Add(1)
			accepting.Go(func() { _ = s.Close() })
		}
	})
	for range workers {
		opening.Go(func() {
			for range each {
				s, err := here.OpenStream(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				if err := s.CloseWrite(); err != nil {
					t.Error(err)
				}
				if n, err := s.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
					t.Errorf("%d bytes, %v; want none and the end", n, err)
				}
			}
		})
	}
	opening.Wait()
	here.Close()
	there.Close()
	accepting.Wait()
	if n := arrived.Load(); n != workers*each {
		t.Errorf("%d streams arrived, want %d", n, workers*each)
	}
}

// valve is a connection whose Write waits for each byte it may let through.
type valve struct {
	net.Conn
	open    chan int // bytes granted
	granted int
	passed  atomic.Int64
	closed  chan struct{}
}

func (v *valve) Write(b []byte) (int, error) {
	for v.granted < len(b) {
		select {
		case n := <-v.open:
			v.granted += n
		case <-v.closed:
			return 0, net.ErrClosed
		}
	}
	v.granted -= len(b)
	v.passed.Add(int64(len(b)))
	return v.Conn.Write(b)
}

func (v *valve) Close() error {
	select {
	case <-v.closed:
	default:
		close(v.closed)
	}
	return v.Conn.Close()
}

// pair returns a session over a valve, and the other end, which reads everything.
func pair(t *testing.T) (*valve, network.MuxedConn) {
	t.Helper()
	a, b := net.Pipe()
	v := &valve{Conn: a, open: make(chan int, 1), closed: make(chan struct{})}
	m := New(config())
	here, err := m.NewConn(v, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	there, err := m.NewConn(b, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			s, err := there.AcceptStream()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, s) }()
		}
	}()
	t.Cleanup(func() { here.Close(); there.Close() })
	return v, here
}

func openStream(t *testing.T, c network.MuxedConn) network.MuxedStream {
	t.Helper()
	s, err := c.OpenStream(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What a stream writes waits in Write, not in yamux's queue.
func TestQueueIsShort(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	v, c := pair(t)
	defer v.Close()
	defer c.Close()
	s := openStream(t, c)
	if err := s.SetWriteDeadline(time.Now().Add(2 * time.Second)); err != nil { // long enough for a busy machine to begin
		t.Fatal(err)
	}
	n, err := s.Write(make([]byte, 4<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, yamux.ErrTimeout) {
		t.Fatalf("write into a blocked connection: %d bytes, %v", n, err)
	}
	if n == 0 || n > startQueue {
		t.Errorf("%d bytes are in the queue of a connection that takes none, want up to %d", n, startQueue)
	}
	// Another stream has room of its own.
	other := openStream(t, c)
	if n, err := other.Write(make([]byte, 1000)); n != 1000 || err != nil {
		t.Errorf("write to another stream: %d, %v", n, err)
	}
}

// The end of a blocked stream, and of its session, ends its Write.
func TestBlockedWriteEnds(t *testing.T) {
	for name, end := range map[string]func(network.MuxedConn, network.MuxedStream){
		"deadline": func(_ network.MuxedConn, s network.MuxedStream) { _ = s.SetDeadline(time.Unix(1, 0)) },
		"reset":    func(_ network.MuxedConn, s network.MuxedStream) { go s.Reset() },
		"close":    func(_ network.MuxedConn, s network.MuxedStream) { go s.Close() },
		"session":  func(c network.MuxedConn, _ network.MuxedStream) { c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			v, c := pair(t)
			s := openStream(t, c)
			done := make(chan error, 1)
			go func() {
				_, err := s.Write(make([]byte, 4<<20))
				done <- err
			}()
			select {
			case err := <-done:
				t.Fatalf("not blocked: %v", err)
			case <-time.After(20 * time.Millisecond):
			}
			end(c, s)
			ctx, cancel := fair.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			select {
			case err := <-done:
				if err == nil {
					t.Error("no error")
				}
			case <-ctx.Done():
				t.Error("still blocked")
			}
			v.Close()
		})
	}
}

// A deadline that is moved does not strike.
func TestDeadlineMoves(t *testing.T) {
	e := newExpiry()
	e.set(time.Now().Add(-time.Second))
	select {
	case <-e.wait():
	default:
		t.Error("a past deadline is not past")
	}
	e.set(time.Now().Add(10 * time.Millisecond))
	e.set(time.Now().Add(time.Hour))
	select {
	case <-e.wait():
		t.Error("the old deadline struck")
	case <-time.After(30 * time.Millisecond):
	}
	e.set(time.Now().Add(time.Millisecond))
	<-e.wait()
	e.set(time.Time{})
}

func BenchmarkWrite(b *testing.B) {
	near, far := tcptest.Pair(b)
	here, err := New(config()).NewConn(near, false, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer here.Close()
	there, err := New(config()).NewConn(far, true, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer there.Close()
	go func() {
		s, err := there.AcceptStream()
		if err == nil {
			buf := make([]byte, 256<<10)
			for err == nil {
				_, err = s.Read(buf)
			}
		}
	}()
	s, err := here.OpenStream(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 64<<10)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
}

// lengths notes how much each Write brings, and says where it leads to.
type lengths struct {
	net.Conn
	network string
	longest atomic.Int64
}

func (l *lengths) RemoteAddr() net.Addr { return l }
func (l *lengths) Network() string      { return l.network }
func (l *lengths) String() string       { return "far" }

func (l *lengths) Write(b []byte) (int, error) {
	l.longest.Store(max(l.longest.Load(), int64(len(b))))
	return l.Conn.Write(b)
}

// Inside of a circuit a record has to fit into one message outside.
func TestMessageLength(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for network, want := range map[string]int64{"tcp": 16 << 10, "libp2p-circuit-relay": 16<<10 - 12 - 22} {
		a, b := net.Pipe()
		l := &lengths{Conn: a, network: network}
		c := config()
		c.MaxMessageSize = 64 << 10 // of which the gate, as yet, allows short ones only
		near, err := New(c).NewConn(l, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		far, err := New(config()).NewConn(b, true, nil)
		if err != nil {
			t.Fatal(err)
		}
		s, err := near.OpenStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Write(make([]byte, 40<<10)); err != nil {
			t.Fatal(err)
		}
		in, err := far.AcceptStream()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(in, make([]byte, 40<<10)); err != nil {
			t.Fatal(err)
		}
		if got := l.longest.Load(); got != want {
			t.Errorf("%s: the longest message has %d bytes, want %d", network, got, want)
		}
		near.Close()
		far.Close()
	}
}

// renewing is a connection of 10 MB/s whose keys change, for which writes stand.
type renewing struct {
	net.Conn
	stall time.Duration
}

func (r *renewing) TLS() *tls.ConnectionState { return nil }

func (r *renewing) Await() {
	time.Sleep(r.stall) // sleep: in a bubble
	r.stall = 0
}

func (r *renewing) Write(b []byte) (int, error) {
	r.Await()
	time.Sleep(time.Duration(len(b)) * time.Second / 10e6) // sleep: in a bubble
	return len(b), nil
}

// While keys change nothing is written; that is not taken for a slow line.
func TestRenewalIsNoSlowLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &renewing{}
		g := newGate(0)
		g.queued[1] = &place{id: 1, queued: 1 << 30}
		c := &conn{Conn: r, gate: g, secure: r}
		b := make([]byte, 16<<10)
		b[1] = typeData
		binary.BigEndian.PutUint32(b[4:], 1)
		for range 1000 {
			_, _ = c.Write(b)
		}
		before := g.drain.Limit()
		r.stall = 2 * time.Second
		_, _ = c.Write(b)
		if got := g.drain.Limit(); got < before/2 || before < 40_000 {
			t.Errorf("the queue's limit: %d bytes before, %d after", before, got)
		}
	})
}
