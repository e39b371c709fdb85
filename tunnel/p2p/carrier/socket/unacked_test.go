package socket

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	manet "github.com/multiformats/go-multiaddr/net"
	"golang.org/x/sys/unix"

	"edgemesh/test/fair"
)

// deafen makes a socket drop every segment that arrives, as a host does that has lost power.
func deafen(t *testing.T, c net.Conn) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
	_ = raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop[0]})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// pair is a connection's two ends.
func pair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	return near, far
}

// What a connection's end says about its silence: a router's reset is not heard, the other end's farewell is, and where bytes were
// on their way it is not the silence.
func TestSilent(t *testing.T) {
	const quiet = 400 * time.Millisecond
	for name, end := range map[string]func(near *Conn, far net.Conn){
		"unanswered": func(near *Conn, _ net.Conn) { near.Close() },
		"closed": func(near *Conn, far net.Conn) {
			far.Close()
			_, _ = near.Read(make([]byte, 1))
		},
		"on its way": func(near *Conn, far net.Conn) {
			deafen(t, far)
			_, _ = near.Write([]byte("x"))
			time.Sleep(50 * time.Millisecond) // sleep: it is not acknowledged
		},
	} {
		near, far := pair(t)
		wrapped, err := manet.WrapNetConn(near)
		if err != nil {
			t.Fatal(err)
		}
		b := Buffered(wrapped, nil)
		b.KeepAlive(MemberSilence)
		time.Sleep(quiet) // sleep: nothing is heard
		end(b, far)
		b.Close()
		if got := b.Silent(); (got >= quiet) != (name == "unanswered") {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A connection that the kernel keeps alive ends soon if the other end goes while bytes are on their way, which stop the keep-alive.
// One whose other end only does not read stays.
func TestUnackedEnds(t *testing.T) {
	for _, deaf := range []bool{true, false} {
		near, far := pair(t)
		wrapped, err := manet.WrapNetConn(near)
		if err != nil {
			t.Fatal(err)
		}
		b := Buffered(wrapped, nil)
		defer b.Close()
		b.unacked.every = 300 * time.Millisecond
		b.KeepAlive(MemberSilence)
		if deaf {
			deafen(t, far)
		}
		text := []byte("CONNECT")
		if !deaf {
			text = make([]byte, 16<<20)
		}
		go func() { _, _ = b.Write(text) }()
		_ = b.SetReadDeadline(time.Now().Add(3 * time.Second))
		_, err = b.Read(make([]byte, 1))
		if ne, ok := err.(net.Error); deaf == (ok && ne.Timeout()) {
			t.Errorf("deaf %v: %v", deaf, err)
		}
	}
}

// probesImmediately wants a probe to leave as soon as it is ordered, not after the silence once more.
func probesImmediately(t *testing.T, b *Conn) {
	t.Helper()
	time.Sleep(200 * time.Millisecond) // sleep: what was on its way is answered
	sent := b.unacked.info().Segs_out
	fair.Eventually(t, time.Minute, "probing begins", fair.True(func() bool {
		b.unacked.mu.Lock()
		defer b.unacked.mu.Unlock()
		return b.unacked.probing
	}))
	time.Sleep(b.unacked.silence / 2) // sleep: a probe leaves, if it does immediately
	if b.unacked.info().Segs_out == sent {
		t.Errorf("no probe has left %v after it was ordered", b.unacked.silence/2)
	}
}

// A relay sends nothing to a member that keeps its connection alive, and probes one from which nothing comes any longer. The
// connection ends if that is gone, and stays, probed once a silence, if it is there.
func TestSupervise(t *testing.T) {
	for name, end := range map[string]func(far net.Conn){
		"gone":   func(far net.Conn) { KeepAlive(far, 0); deafen(t, far) },
		"silent": func(far net.Conn) { KeepAlive(far, 0) },
		"alive":  func(net.Conn) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			near, far := pair(t)
			wrapped, err := manet.WrapNetConn(near)
			if err != nil {
				t.Fatal(err)
			}
			b := Buffered(wrapped, nil)
			defer b.Close()
			b.unacked.every, b.unacked.silence = 200*time.Millisecond, 4*time.Second
			KeepAlive(far, time.Second)
			b.Supervise()
			time.Sleep(4 * time.Second) // sleep: no probes are sent meanwhile
			before := b.unacked.info()
			if before.Segs_in < 2 || before.Segs_out > before.Segs_in+1 {
				t.Errorf("%d segments for the %d of a member that is there", before.Segs_out, before.Segs_in)
			}
			end(far)
			wait := 9 * time.Second
			if name == "gone" {
				wait = time.Minute
				probesImmediately(t, b)
			}
			_ = b.SetReadDeadline(time.Now().Add(wait))
			_, err = b.Read(make([]byte, 1))
			if errors.Is(err, os.ErrDeadlineExceeded) == (name == "gone") {
				t.Errorf("after %v: %v", wait, err)
			}
			if after := b.unacked.info(); name == "silent" && after.Segs_out-before.Segs_out > 4 {
				t.Errorf("probed %d times in %v", after.Segs_out-before.Segs_out, wait)
			}
		})
	}
}
