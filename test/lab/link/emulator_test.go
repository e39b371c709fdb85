package link

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"

	"edgemesh/internal/nstest"
)

// ownNamespace moves the test's thread into a network namespace of its own, which
// ends with the thread.
func ownNamespace(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: devices need root")
	}
	runtime.LockOSThread() // and never unlock
	ns, err := nstest.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
}

// TestEmulator holds that an emulator can be talked to while it runs, ends when
// told to, and leaves neither goroutines nor devices.
func TestEmulator(t *testing.T) {
	defer goleak.VerifyNone(t)
	ownNamespace(t)
	want := Both(Direction{Rate: 1e6, QueueTime: time.Second})
	e, err := New("a", "b", 1400, want, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		l, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if a := l.Attrs(); a.MTU != 1400 || a.TxQLen != ringFrames || a.Flags&net.FlagUp == 0 {
			t.Errorf("%s: mtu %d, queue %d, %s", name, a.MTU, a.TxQLen, a.Flags)
		}
	}
	if _, err := New("a", "c", 0, Config{}, 1); err == nil {
		t.Error("two emulators at one device")
	}
	if _, err := New("c", "d", 0, Both(Direction{Loss: -1}), 1); !errors.Is(err, ErrConfig) {
		t.Errorf("negative loss: %v", err)
	}
	if links, err := netlink.LinkList(); err != nil || len(links) != 3 { // with lo
		t.Errorf("%d devices, %v", len(links), err)
	}

	client := Client{Socket: filepath.Join(t.TempDir(), "link.sock")}
	l, err := net.Listen("unix", client.Socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran, served := make(chan error, 1), make(chan error, 1)
	go func() { ran <- e.Run(ctx) }()
	go func() { served <- e.Serve(ctx, l) }()
	if got, err := client.Config(ctx); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	want.Down.Loss = 0.5
	if err := client.Set(ctx, want); err != nil {
		t.Error(err)
	}
	if got, err := client.Config(ctx); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if err := client.Set(ctx, Both(Direction{Queue: 5})); !errors.Is(err, ErrControl) {
		t.Errorf("a queue without a rate: %v", err)
	}
	if got, err := client.Config(ctx); err != nil || got != want {
		t.Errorf("after a refusal: %+v, %v", got, err)
	}
	cancel()
	for _, ended := range []chan error{ran, served} {
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("it does not end")
		}
	}
	e.Close()
	if _, err := netlink.LinkByName("a"); err == nil {
		t.Error("the TAP is still there")
	}
}
