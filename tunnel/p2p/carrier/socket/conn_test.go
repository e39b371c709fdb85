package socket

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	manet "github.com/multiformats/go-multiaddr/net"
	"go.uber.org/goleak"

	"edgemesh/internal/tcptest"
	"edgemesh/test/fair"
)

// tcpPair returns a buffered connection and the bare other end.
func tcpPair(t testing.TB) (*Conn, net.Conn) {
	t.Helper()
	c, other := tcptest.Pair(t)
	mc, err := manet.WrapNetConn(c)
	if err != nil {
		t.Fatal(err)
	}
	b := Buffered(mc, nil)
	t.Cleanup(func() { b.Close(); other.Close() })
	return b, other
}

func TestConnCarriesEverything(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	b, other := tcpPair(t)
	const size = 20 << 20
	sent, echoed := sha256.New(), sha256.New()
	go func() { _, _ = io.Copy(other, other) }()
	done := make(chan error, 1)
	go func() {
		buf := make([]byte, 300<<10)
		for n := 0; n < size; {
			k := min(1+rand.IntN(len(buf)), size-n)
			for i := range 16 {
				buf[rand.IntN(k)] = byte(i + n)
			}
			sent.Write(buf[:k])
			if _, err := b.Write(buf[:k]); err != nil {
				done <- err
				return
			}
			n += k
		}
		done <- nil
	}()
	buf := make([]byte, 300<<10)
	for n := 0; n < size; {
		k, err := b.Read(buf[:1+rand.IntN(len(buf))])
		if err != nil {
			t.Fatal(err)
		}
		echoed.Write(buf[:k])
		n += k
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(sent.Sum(nil), echoed.Sum(nil)) {
		t.Error("what came back is not what was sent")
	}
	if len(b.rbuf) != maxReadBuffer {
		t.Errorf("read buffer of a busy connection is %d, want %d", len(b.rbuf), maxReadBuffer)
	}
	b.Close()
	other.Close()
}

func TestConnFreesItsBuffer(t *testing.T) {
	b, other := tcpPair(t)
	b.rbuf = make([]byte, maxReadBuffer)
	one := make([]byte, 1)
	for range 4 * smallReads {
		if _, err := other.Write(one); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Read(one); err != nil {
			t.Fatal(err)
		}
	}
	if len(b.rbuf) != minReadBuffer {
		t.Errorf("read buffer of a quiet connection is %d, want %d", len(b.rbuf), minReadBuffer)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pending != nil {
		t.Error("a connection that writes nothing holds a write buffer")
	}
}

func TestConnClose(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	b, other := tcpPair(t)
	// What was written before Close arrives.
	if _, err := b.Write([]byte("last words")); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(other); string(got) != "last words" {
		t.Errorf("read %q, %v", got, err)
	}
	if _, err := b.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write after close: %v, want net.ErrClosed", err)
	}
	if err := b.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second close: %v, want net.ErrClosed", err)
	}
	// Close does not wait for a peer that reads nothing, and ends a blocked Write.
	b, other = tcpPair(t)
	blocked := make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			_, err = b.Write(make([]byte, 1<<20))
		}
		blocked <- err
	}()
	fill(t, b)
	clock := fair.Start()
	b.Close()
	clock.Stop()
	if d := clock.Elapsed(); d > 5*time.Second {
		t.Errorf("close took %v", d)
	}
	if err := <-blocked; !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("blocked write: %v, want net.ErrClosed or the deadline", err)
	}
	other.Close()
}

// fill waits until b takes no more.
func fill(t *testing.T, b *Conn) {
	t.Helper()
	stuck := 0
	fair.Eventually(t, 10*time.Second, "full", func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.pending) >= b.drain.Limit() {
			stuck++
		} else {
			stuck = 0
		}
		if stuck < 10 {
			return errors.New("not yet")
		}
		return nil
	})
}

func TestConnDeadline(t *testing.T) {
	b, _ := tcpPair(t)
	if err := b.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	var err error
	for err == nil {
		_, err = b.Write(make([]byte, 1<<20))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("error %v, want the deadline", err)
	}
	if err := b.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := b.SetDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("write after the deadline: %v", err)
	}
	if _, err := b.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read after the deadline: %v", err)
	}
}

// An error of the socket reaches the writer.
func TestConnError(t *testing.T) {
	b, other := tcpPair(t)
	other.Close()
	fair.Eventually(t, 5*time.Second, "write fails", func() error {
		if _, err := b.Write(make([]byte, 1000)); err == nil {
			return errors.New("no error")
		}
		return nil
	})
}

func BenchmarkBufferedWrite(bm *testing.B) {
	b, other := tcpPair(bm)
	go func() { _, _ = io.Copy(io.Discard, struct{ io.Reader }{other}) }()
	record := make([]byte, 16<<10)
	bm.SetBytes(int64(len(record)))
	bm.ReportAllocs()
	for bm.Loop() {
		if _, err := b.Write(record); err != nil {
			bm.Fatal(err)
		}
	}
}

// A connection holds no buffer while it waits: neither one that was busy, nor a quiet one.
func TestWaitingHoldsNoBuffer(t *testing.T) {
	quiet, talks := tcpPair(t)
	if _, err := talks.Write([]byte("word")); err != nil {
		t.Fatal(err)
	}
	_, err := quiet.Read(make([]byte, 4))
	if err = errors.Join(err, quiet.SetDeadline(time.Now().Add(50*time.Millisecond))); err != nil {
		t.Fatal(err)
	}
	if _, err := quiet.Read(make([]byte, 4)); !errors.Is(err, os.ErrDeadlineExceeded) || quiet.lent != nil {
		t.Errorf("a quiet one: %v, it holds %d bytes", err, len(quiet.rbuf))
	}
	near, other := tcpPair(t)
	go func() { _, _ = other.Write(make([]byte, 8<<20)) }()
	buf := make([]byte, 64<<10)
	for got := 0; got < 8<<20; {
		n, err := near.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		got += n
	}
	if near.readSize == minReadBuffer {
		t.Fatal("the buffer never grew")
	}
	if err := near.SetDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := near.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	if near.lent != nil || near.rbuf != nil {
		t.Errorf("it holds %d bytes", len(near.rbuf))
	}
	if _, err := other.Write([]byte("more")); err != nil {
		t.Fatal(err)
	}
	if err := near.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if n, err := near.Read(buf); string(buf[:n]) != "more" || err != nil {
		t.Errorf("%q, %v", buf[:n], err)
	}
}
