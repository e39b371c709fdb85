package identity

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"edgemesh/test/fair"
)

// crossing is what stands between two connections and has no key. It moves records, until the second handshake begins.
type crossing struct {
	t       *testing.T
	cross   bool
	arrived sync.WaitGroup // both second ClientHellos
	clients [2]net.Conn    // its ends of them
	servers [2]net.Conn
}

// records moves those of one direction of connection i, and those of the second handshake, with all behind them, to that of to.
func (x *crossing) records(i int, hellos bool, from, to *[2]net.Conn) {
	out, handshakes := to[i], 0
	for header := make([]byte, 5); ; {
		if _, err := io.ReadFull(from[i], header); err != nil {
			out.Close()
			return
		}
		body := make([]byte, binary.BigEndian.Uint16(header[3:]))
		if _, err := io.ReadFull(from[i], body); err != nil {
			return
		}
		if header[0] == 22 { // in the clear: a hello
			if handshakes++; handshakes == 2 {
				if hellos {
					x.arrived.Done()
					x.arrived.Wait()
				}
				if x.cross {
					out = to[1-i]
				}
			}
		}
		if _, err := out.Write(append(header[:5:5], body...)); err != nil {
			return
		}
	}
}

// pipe is a connection by loopback, closed with the test.
func pipe(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// Who stands between two connections of the same peers cannot exchange the sessions that follow: both ends of both refuse. The
// same proxy that does not cross them changes nothing.
func TestSessionsCannotBeCrossed(t *testing.T) {
	for _, cross := range []bool{false, true} {
		var done atomic.Int32
		renewal := Renewal{Most: 10, Within: 5 * time.Second, Done: func() { done.Add(1) }}
		client, server := newEnd(t, false), newEnd(t, false)
		x := &crossing{t: t, cross: cross}
		x.arrived.Add(2)
		var cs, ss [2]net.Conn
		var far [2][2]net.Conn
		for i := range 2 {
			far[i][0], x.clients[i] = pipe(t)
			far[i][1], x.servers[i] = pipe(t)
		}
		for i := range 2 {
			go x.records(i, true, &x.clients, &x.servers)
			go x.records(i, false, &x.servers, &x.clients)
		}
		for i := range 2 {
			var serr, cerr error
			var wg sync.WaitGroup
			wg.Go(func() { ss[i], serr = server.t.(*TLS).Renewing(renewal).SecureInbound(t.Context(), far[i][1], "") })
			cs[i], cerr = client.t.(*TLS).Renewing(renewal).SecureOutbound(t.Context(), far[i][0], server.id)
			wg.Wait()
			if err := errors.Join(cerr, serr); err != nil {
				t.Fatal(err)
			}
		}
		var mu sync.Mutex
		var got [2][2]int // by connection, what came of the words of either
		var all sync.WaitGroup
		for i := range 2 {
			go func() { _, _ = io.Copy(io.Discard, cs[i]) }()
			all.Go(func() {
				for b := make([]byte, 1); ; {
					if _, err := ss[i].Read(b); err != nil {
						return
					}
					mu.Lock()
					got[i][b[0]]++
					ok := got[i][0]+got[i][1] == 20
					mu.Unlock()
					if ok {
						return
					}
				}
			})
			go func() {
				var err error
				for n := 0; n < 20 && err == nil; n++ {
					_, err = cs[i].Write([]byte{byte(i)})
				}
			}()
		}
		all.Wait()
		if got[0][1]+got[1][0] > 0 {
			t.Errorf("crossed %v: bytes of one connection came out of the other: %v", cross, got)
		}
		if whole := got[0][0] == 20 && got[1][1] == 20; whole == cross || done.Load() > 0 == cross {
			t.Errorf("crossed %v: %v came, %d renewals", cross, got, done.Load())
		}
	}
}

// begun returns both ends of a connection whose client has ended its session, and the server too: the next handshake is due.
func begun(t *testing.T, client, server end, within time.Duration) (c, s *tlsConn) {
	t.Helper()
	renewal := Renewal{Most: 10, Within: within, Done: func() { t.Error("renewed") }}
	x, y := shakeTCP(t, client.t.(*TLS), server.t.(*TLS).Renewing(renewal), server.id)
	c, s = x.(*tlsConn), y.(*tlsConn)
	pump(t, c, s, 8)
	return c, s
}

// betweenSessions is a client's end whose first session has ended at both ends, and how the server's reading ends.
func betweenSessions(t *testing.T, client, server end) (c *tlsConn, ended chan error) {
	t.Helper()
	c, s := begun(t, client, server, 5*time.Second)
	ended = make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, s)
		ended <- err
	}()
	session := c.session.Load()
	if err := session.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := session.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	_ = c.Conn.SetWriteDeadline(time.Time{}) // crypto/tls's, after a close_notify
	return c, ended
}

// A connection that is new for its client cannot follow an old one.
func TestNewConnectionFollowsNone(t *testing.T) {
	client, server := newEnd(t, false), newEnd(t, false)
	c, ended := betweenSessions(t, client, server)
	if again, err := client.t.SecureOutbound(t.Context(), c.Conn, server.id); err == nil {
		_, err = again.Write([]byte("x"))
		t.Fatal("a new handshake in place of the renewal:", err)
	}
	if err := <-ended; err == nil {
		t.Error("the server's connection has ended without an error")
	}
}

// Nor can one without ALPN, which crypto/tls accepts at both ends.
func TestRenewalNeedsTheBinding(t *testing.T) {
	client, server := newEnd(t, false), newEnd(t, false)
	c, ended := betweenSessions(t, client, server)
	cfg, _ := client.t.(*TLS).identity.ConfigForPeer(server.id)
	cfg.NextProtos = nil
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_ = tls.Client(c.Conn, cfg).HandshakeContext(ctx)
	if err := <-ended; err == nil {
		t.Error("the server's connection has ended without an error")
	}
}

// The next session is with the same peer, or the connection ends.
func TestRenewalWithAnotherPeer(t *testing.T) {
	client, server, other := newEnd(t, false), newEnd(t, false), newEnd(t, false)
	renewal := Renewal{Most: 10, Done: func() { t.Error("renewed") }}
	x, y := shakeTCP(t, client.t.(*TLS).Renewing(renewal), server.t.(*TLS).Renewing(Renewal{Most: 10}), server.id)
	y.(*tlsConn).t = other.t.(*TLS).Renewing(Renewal{Most: 10})
	y.(*tlsConn).begin()
	go func() { _, _ = io.Copy(io.Discard, y) }()
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, x)
		ended <- err
	}()
	var err error
	for range 1000 {
		if _, err = x.Write([]byte("x")); err != nil {
			break
		}
	}
	if err == nil || <-ended == nil {
		t.Error("the keys of another peer are accepted")
	}
}

// A far end that acknowledges and never answers ends the connection in time, wherever it stops: before its close_notify, or in
// the handshake. Who writes and who closes does not wait for it either.
func TestRenewalThatHangs(t *testing.T) {
	for what, answers := range map[string]bool{"no close_notify": false, "no handshake": true} {
		for _, closes := range []bool{false, true} {
			within := 300 * time.Millisecond
			if closes {
				within = time.Hour
			}
			client, server := newEnd(t, false), newEnd(t, false)
			x, y := shakeTCP(t, client.t.(*TLS).Renewing(Renewal{Most: 10, Within: within}), server.t, server.id)
			if answers {
				go func() {
					session := y.(*tlsConn).session.Load()
					_, _ = io.Copy(io.Discard, session)
					_ = session.CloseWrite()
				}()
			}
			read, written := make(chan error, 1), make(chan error, 1)
			go func() {
				_, err := x.Read(make([]byte, 1))
				read <- err
			}()
			go func() {
				var err error
				for err == nil {
					_, err = x.Write([]byte("x"))
				}
				written <- err
			}()
			if closes {
				fair.Eventually(t, 5*time.Second, "the end of the session", fair.True(func() bool { return renewing(x) }))
				began := time.Now()
				x.Close()
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("%s: Close took %v", what, took)
				}
			}
			for who, ended := range map[string]chan error{"reader": read, "writer": written} {
				select {
				case err := <-ended:
					if err == nil {
						t.Errorf("%s: the %s sees no error", what, who)
					}
				case <-time.After(5 * time.Second):
					t.Fatalf("%s: the %s waits", what, who)
				}
			}
		}
	}
}

// full is a socket whose far end takes no more, from a moment on.
type full struct {
	net.Conn
	on     atomic.Bool
	once   sync.Once
	closed chan struct{}
}

func (f *full) Write(b []byte) (int, error) {
	if f.on.Load() {
		<-f.closed
		return 0, net.ErrClosed
	}
	return f.Conn.Write(b)
}

func (f *full) Close() error {
	f.once.Do(func() { close(f.closed) })
	return f.Conn.Close()
}

// Close does not wait for a close_notify that the socket does not take.
func TestCloseOnAFullSocket(t *testing.T) {
	client, server := newEnd(t, false), newEnd(t, false)
	x, _ := shakeTCP(t, client.t.(*TLS).Renewing(Renewal{Most: 10}), server.t, server.id)
	c := x.(*tlsConn)
	f := &full{Conn: c.Conn, closed: make(chan struct{})}
	c.Conn = f
	f.on.Store(true)
	c.sent.Store(10)
	written := make(chan error, 1)
	go func() {
		_, err := c.Write([]byte("x"))
		written <- err
	}()
	time.Sleep(100 * time.Millisecond) // sleep: in CloseWrite by now
	began := time.Now()
	c.Close()
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("Close took %v", took)
	}
	if err := <-written; err == nil {
		t.Error("written")
	}
}

// deadlines remembers what a socket was given last.
type deadlines struct {
	net.Conn
	last time.Time
}

func (d *deadlines) SetWriteDeadline(t time.Time) error {
	d.last = t
	return nil
}

// The write deadline that was given before or during a renewal holds after it, and leaves what waited a moment.
func TestDeadlineOutlivesRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &deadlines{}
		c := &tlsConn{records: &records{Conn: d}}
		soon, late := time.Now().Add(time.Second), time.Now().Add(time.Hour)
		_ = c.SetWriteDeadline(soon)
		c.hold(30 * time.Second)
		_ = c.records.SetWriteDeadline(time.Now()) // crypto/tls after its close_notify
		if want := time.Now().Add(30 * time.Second); !d.last.Equal(want) {
			t.Errorf("during the renewal: %v, want %v", d.last, want)
		}
		time.Sleep(2 * time.Second)
		c.release()
		if want := time.Now().Add(afterRenewal); !d.last.Equal(want) {
			t.Errorf("one that has passed: %v, want %v", d.last, want)
		}
		c.hold(30 * time.Second)
		_ = c.SetWriteDeadline(late)
		c.release()
		if !d.last.Equal(late) {
			t.Errorf("one given meanwhile: %v, want %v", d.last, late)
		}
		_ = c.SetWriteDeadline(time.Time{})
		c.hold(30 * time.Second)
		c.release()
		if !d.last.IsZero() {
			t.Errorf("none: %v", d.last)
		}
	})
}

// line is a pair of connections with a delay in each direction.
func line(delay time.Duration) (a, b net.Conn) {
	type chunk struct {
		at   time.Time
		data []byte
	}
	a, x := net.Pipe()
	y, b := net.Pipe()
	carry := func(from, to net.Conn) {
		under := make(chan chunk, 1<<10)
		go func() {
			for c := range under {
				time.Sleep(time.Until(c.at)) // sleep: the line's delay
				_, _ = to.Write(c.data)
			}
			to.Close()
		}()
		defer close(under)
		for {
			buf := make([]byte, 32<<10)
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			under <- chunk{time.Now().Add(delay), buf[:n]}
		}
	}
	go carry(x, y)
	go carry(y, x)
	return a, b
}

// On a line with a round trip of 1 s neither end hears nothing for more than two of them: a busy relayed path has 3 s (ladder).
func TestRenewalOnALongLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var done atomic.Int32
		r := Renewal{Most: 100, Done: func() { done.Add(1) }}
		client, server := newEnd(t, false), newEnd(t, false)
		a, b := line(500 * time.Millisecond)
		var s net.Conn
		var serr error
		var wg sync.WaitGroup
		wg.Go(func() { s, serr = server.t.(*TLS).Renewing(r).SecureInbound(t.Context(), b, "") })
		c, err := client.t.(*TLS).Renewing(r).SecureOutbound(t.Context(), a, server.id)
		wg.Wait()
		if err := errors.Join(err, serr); err != nil {
			t.Fatal(err)
		}
		for who, end := range map[string]net.Conn{"client": c, "server": s} {
			wg.Go(func() { // requests, as the probes of a busy path
				var err error
				for err == nil {
					time.Sleep(100 * time.Millisecond)
					_, err = end.Write([]byte("x"))
				}
			})
			wg.Go(func() {
				heard := time.Now()
				for buf := make([]byte, 100); ; {
					if _, err := end.Read(buf); err != nil {
						return
					}
					if gap := time.Since(heard); gap > 2300*time.Millisecond {
						t.Errorf("the %s heard nothing for %v", who, gap)
					}
					heard = time.Now()
				}
			})
		}
		time.Sleep(time.Minute)
		c.Close()
		s.Close()
		wg.Wait()
		time.Sleep(time.Second) // the line's last bytes
		if done.Load() < 4 {
			t.Errorf("%d renewals", done.Load())
		}
	})
}

// The connections of a relay that has started again do not renew in the same minute.
func TestRenewalsAreSpread(t *testing.T) {
	now := time.Unix(0, 0)
	early := 0
	for range 200 {
		c := &tlsConn{t: &TLS{renewal: Renewal{Now: func() time.Time { return now }}.orDefault()}, records: &records{}, client: true}
		c.begin()
		c.sent.Store(2000)
		if c.begun = now.Add(-time.Hour + 1); c.due(1) {
			t.Fatal("due before an hour")
		}
		if c.begun = now.Add(-67 * time.Minute); c.due(1) {
			early++
		}
		if c.begun = now.Add(-75 * time.Minute); !c.due(1) {
			t.Fatal("not due after an hour and a quarter")
		}
	}
	if early < 50 || early > 150 {
		t.Errorf("%d of 200 in the first 7 minutes", early)
	}
}
