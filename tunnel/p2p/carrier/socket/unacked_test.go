package socket

import (
	"net"
	"testing"
	"time"

	manet "github.com/multiformats/go-multiaddr/net"
	"golang.org/x/sys/unix"
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
			time.Sleep(50 * time.Millisecond)
		},
	} {
		near, far := pair(t)
		wrapped, err := manet.WrapNetConn(near)
		if err != nil {
			t.Fatal(err)
		}
		b := Buffered(wrapped, nil)
		b.KeepAlive(MemberSilence)
		time.Sleep(quiet)
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
