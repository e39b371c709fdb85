package identity

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/sec"

	"edgemesh/test/fair"
)

// shakeTCP connects two ends over a loopback socket.
func shakeTCP(t *testing.T, client, server sec.SecureTransport, serverID peer.ID) (c, s sec.SecureConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	var serr error
	var wg sync.WaitGroup
	wg.Go(func() { s, serr = server.SecureInbound(t.Context(), b, "") })
	c, err = client.SecureOutbound(t.Context(), a, serverID)
	wg.Wait()
	if err := errors.Join(err, serr); err != nil {
		t.Fatal(err)
	}
	return c, s
}

// stream writes n bytes of a seeded sequence in writes of any size, and reports what came at the other end.
func stream(from, to net.Conn, seed uint64, n int) error {
	read := make(chan error, 1)
	go func() {
		want := rand.New(rand.NewPCG(seed, 0))
		b, w := make([]byte, 9000), make([]byte, 9000)
		for got := 0; got < n; {
			k, err := to.Read(b)
			for i := range k {
				w[i] = byte(want.Uint32())
			}
			if !bytes.Equal(b[:k], w[:k]) {
				err = errors.New("other bytes came")
			}
			if err != nil {
				read <- err
				return
			}
			got += k
		}
		read <- nil
		_, _ = io.Copy(io.Discard, to) // who stops to read takes no part in a renewal
	}()
	data, size := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 1))
	for left := n; left > 0; {
		b := make([]byte, min(left, 1+size.IntN(40000)))
		for i := range b {
			b[i] = byte(data.Uint32())
		}
		if _, err := from.Write(b); err != nil {
			return err
		}
		left -= len(b)
	}
	return <-read
}

// secret tells one session from the next.
func secret(t *testing.T, c sec.SecureConn) string {
	t.Helper()
	state := c.(*tlsConn).session.Load().ConnectionState()
	b, err := state.ExportKeyingMaterial("test", nil, 16)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A connection under load gets new keys again and again, whichever end sends, and not a byte is lost or doubled.
func TestKeysChangeUnderLoad(t *testing.T) {
	var changes atomic.Uint64
	r := Renewal{Most: 100, Done: func() { changes.Add(1) }}
	for name, senders := range map[string][2]bool{"the client sends": {true, false}, "the server sends": {false, true}, "both send": {true, true}} {
		t.Run(name, func(t *testing.T) {
			changes.Store(0)
			client, server := newEnd(t, false), newEnd(t, false)
			c, s := shakeTCP(t, client.t.(*TLS).Renewing(r), server.t.(*TLS).Renewing(r), server.id)
			binding, _ := s.(*tlsConn).TLS().ExportKeyingMaterial("test", nil, 16)
			first := secret(t, c)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { // windows and probes: a multiplexer's client never just reads
				for ctx.Err() == nil {
					_, _ = c.Write(nil)
					time.Sleep(time.Millisecond) // sleep: the rate of writes
				}
			})
			t.Cleanup(func() { cancel(); wg.Wait() })
			errs := make(chan error, 2)
			for i, x := range []struct {
				from, to net.Conn
				sends    bool
			}{{c, s, senders[0]}, {s, c, senders[1]}} {
				size := 8 << 20
				if !x.sends {
					size = 1000 // its reader runs nevertheless
				}
				go func() { errs <- stream(x.from, x.to, uint64(i), size) }()
			}
			if err := errors.Join(<-errs, <-errs); err != nil {
				t.Fatal(err)
			}
			fair.Eventually(t, 20*time.Second, "renewals", func() error {
				if changes.Load() >= 6 {
					return nil
				}
				// A renewal takes a round trip, in which a fast stream may be through: more, which the other end discards.
				for i, from := range []net.Conn{c, s} {
					if senders[i] {
						if _, err := from.Write(make([]byte, 1<<20)); err != nil {
							return err
						}
					}
				}
				return errors.New("keys hardly changed")
			})
			fair.Eventually(t, 5*time.Second, "one session", func() error {
				if a, b := secret(t, c), secret(t, s); a != b || a == first {
					return errors.New("the ends are in different sessions, or still in the first")
				}
				return nil
			})
			if again, _ := c.(*tlsConn).TLS().ExportKeyingMaterial("test", nil, 16); !bytes.Equal(again, binding) {
				t.Error("a proof of the beginning no longer holds")
			}
		})
	}
}

// pump moves records of one byte from the client to the server.
func pump(t *testing.T, c, s net.Conn, records int) {
	t.Helper()
	written := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < records && err == nil; i++ {
			_, err = c.Write([]byte{1})
		}
		written <- err
	}()
	if _, err := io.ReadFull(s, make([]byte, records)); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
}

// An hour is enough only for a connection that was used: one that rests keeps its keys until a thousand records have come together.
func TestIdleConnectionKeepsItsKeys(t *testing.T) {
	now := time.Unix(1000, 0)
	r := Renewal{Now: func() time.Time { return now }}
	client, server := newEnd(t, false), newEnd(t, false)
	c, s := shakeTCP(t, client.t.(*TLS).Renewing(r), server.t.(*TLS).Renewing(r), server.id)
	go func() { // the client's reader, which takes its part in a renewal
		_, _ = c.Read(make([]byte, 1))
	}()
	first := secret(t, c)
	pump(t, c, s, 900)
	now = now.Add(26 * time.Hour)
	pump(t, c, s, 50)
	if secret(t, c) != first {
		t.Fatal("keys changed after 950 records")
	}
	pump(t, c, s, 100)
	if secret(t, c) == first {
		t.Fatal("keys stayed after a day and 1050 records")
	}
	second := secret(t, c)
	now = now.Add(59 * time.Minute)
	pump(t, c, s, 2000)
	if secret(t, c) != second {
		t.Fatal("keys changed after 59 minutes")
	}
}

// Keys end long before AES-GCM's bound of 2^24.5 records (RFC 8446, section 5.5), however soon these come.
func TestMostRecordsOfOneKey(t *testing.T) {
	client, server := newEnd(t, false), newEnd(t, false)
	c, s := shakeTCP(t, client.t, server.t, server.id)
	go func() { // the client's reader, which takes its part in a renewal
		_, _ = c.Read(make([]byte, 1))
	}()
	first := secret(t, c)
	c.(*tlsConn).sent.Store(1<<23 - 20)
	s.(*tlsConn).received.Store(1<<23 - 20)
	pump(t, c, s, 10)
	if secret(t, c) != first {
		t.Fatal("the control: keys changed too early")
	}
	pump(t, c, s, 20)
	if secret(t, c) == first {
		t.Error("keys stayed after 2^23 records")
	}
}

// Ends of earlier releases, which know nothing of a second session, keep the first, in both roles.
func TestKeysWithAnEndThatCannotRenew(t *testing.T) {
	for _, c := range []struct{ clientTheirs, serverTheirs bool }{{true, false}, {false, true}} {
		client, server := newEnd(t, c.clientTheirs), newEnd(t, c.serverTheirs)
		ends := [2]sec.SecureTransport{client.t, server.t}
		for i, e := range ends {
			if ours, ok := e.(*TLS); ok {
				ends[i] = ours.Renewing(Renewal{Most: 10, Done: func() { t.Error("renewed") }})
			}
		}
		x, y := shakeTCP(t, ends[0], ends[1], server.id)
		if err := stream(x, y, 1, 1<<20); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		if err := stream(y, x, 1, 1<<20); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		x.Close()
		fair.Eventually(t, 5*time.Second, "the end at the other end", func() error {
			if _, err := y.Write([]byte("x")); err == nil {
				return errors.New("still written")
			}
			return nil
		})
	}
}

// A client that wants new keys much more often than this end would make them costs it no handshakes: the connection ends.
func TestKeysAreNotRenewedForFun(t *testing.T) {
	client, server := newEnd(t, false), newEnd(t, false)
	c, s := shakeTCP(t, client.t.(*TLS).Renewing(Renewal{Most: 2000}),
		server.t.(*TLS).Renewing(Renewal{Done: func() { t.Error("renewed after 2000 records") }}), server.id)
	go func() { _, _ = io.Copy(io.Discard, c) }()
	go func() {
		var err error
		for err == nil {
			_, err = c.Write([]byte("x"))
		}
	}()
	if n, err := io.Copy(io.Discard, s); err != nil || n < 1900 || n > 2000 {
		t.Errorf("%d records, %v", n, err)
	}
	s.Close()
}

// A close in the middle of a renewal ends both ends, also who waits to write.
func TestCloseWhileKeysChange(t *testing.T) {
	client, server := newEnd(t, false), newEnd(t, false)
	r := Renewal{Most: 10}
	c, s := shakeTCP(t, client.t.(*TLS).Renewing(r), server.t.(*TLS).Renewing(r), server.id)
	go func() { _, _ = io.Copy(io.Discard, c) }()
	written := make(chan error)
	go func() { // the server does not read: the client waits
		var err error
		for err == nil {
			_, err = c.Write([]byte("x"))
		}
		written <- err
	}()
	fair.Eventually(t, 5*time.Second, "the client's end of the session", fair.True(func() bool { return renewing(c) }))
	c.Close()
	if err := <-written; err == nil {
		t.Error("written after the close")
	}
	if _, err := io.Copy(io.Discard, s); err != nil && !errors.Is(err, io.EOF) {
		t.Log(err)
	}
	if _, err := s.Write([]byte("x")); err == nil {
		t.Error("the server writes into a closed connection")
	}
}

func renewing(c net.Conn) bool {
	x := c.(*tlsConn)
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.renewing
}
