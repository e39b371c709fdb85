package rawio

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/internal/tcptest"
)

func TestCarriesEverything(t *testing.T) {
	near, far := tcptest.Pair(t)
	w, err := New(near)
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(far)
	if err != nil {
		t.Fatal(err)
	}
	sent := make([]byte, 8<<20) // more than the sockets hold: Write has to wait
	rand.Read(sent)
	done := make(chan error, 1)
	go func() {
		n, err := w.Write(sent)
		if err == nil && n != len(sent) {
			err = io.ErrShortWrite
		}
		near.CloseWrite()
		done <- err
	}()
	got, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(sent, got) {
		t.Error("what came is not what was sent")
	}
}

// TestWriteRoom: a socket whose peer reads nothing takes no more unsent than TCP_NOTSENT_LOWAT and one call.
func TestWriteRoom(t *testing.T) {
	near, _ := tcptest.Pair(t)
	f, err := New(near)
	if err != nil {
		t.Fatal(err)
	}
	const lowat, size = 8 << 10, 4 << 10
	unsent := 0
	look := func(fd uintptr) {
		if unsent, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQNSD); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.raw.Control(func(fd uintptr) {
		if err := unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, lowat); err != nil {
			t.Fatal(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	near.SetWriteDeadline(time.Now().Add(time.Second))
	for total := 0; ; total += size {
		_, werr := f.WriteRoom(make([]byte, size))
		if err := f.raw.Control(look); err != nil {
			t.Fatal(err)
		}
		if unsent > lowat+size {
			t.Fatalf("%d bytes unsent after %d", unsent, total)
		}
		if werr != nil {
			if !errors.Is(werr, os.ErrDeadlineExceeded) || unsent == 0 {
				t.Errorf("%d bytes unsent: %v", unsent, werr)
			}
			return
		}
	}
}

func TestErrors(t *testing.T) {
	near, far := tcptest.Pair(t)
	f, err := New(near)
	if err != nil {
		t.Fatal(err)
	}
	near.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := f.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read at the deadline: %v", err)
	}
	if n, err := f.Read(nil); n != 0 || err != nil {
		t.Errorf("read of nothing: %d, %v", n, err)
	}
	far.SetLinger(0)
	far.Close()
	for err = nil; err == nil; {
		_, err = f.Write([]byte("x"))
	}
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write to a reset connection: %v", err)
	}
	near.Close()
	if _, err := f.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read of a closed connection: %v", err)
	}
}

// A blocked Read ends when the connection is closed.
func TestCloseUnblocks(t *testing.T) {
	near, _ := tcptest.Pair(t)
	f, err := New(near)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := f.Read(make([]byte, 1))
		done <- err
	}()
	near.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("error %v", err)
	}
}

func TestNoAllocation(t *testing.T) {
	near, far := tcptest.Pair(t)
	w, _ := New(near)
	r, _ := New(far)
	buf := make([]byte, 1000)
	if n := testing.AllocsPerRun(200, func() {
		if _, err := w.Write(buf); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(r, buf); err != nil {
			t.Fatal(err)
		}
	}); n >= 1 {
		t.Errorf("%v allocations per call", n)
	}
}
