package daemon

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"

	"edgemesh/internal/nstest"
	"edgemesh/test/fair"
	"edgemesh/tunnel/tun"
)

// A deleted TUN is made again by the Read that notices it.
func TestDeletedTUNIsMadeAgain(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: network namespaces need root")
	}
	defer goleak.VerifyNone(t)
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	ns, err := nstest.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	const name = "lasting0"
	l, err := openTUN(tun.Config{Name: name, Persist: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	first := l.index
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // as above: the interface is made again where the reader is
		err := ns.Set()
		for buf := make([]byte, 1<<17); err == nil; {
			_, err = l.Read(buf) // what the new interface says by itself, then the end
		}
		read <- err
	}()
	fair.Eventually(t, 20*time.Second, "the interface comes back", func() error {
		_, err := net.InterfaceByName(name)
		return err
	})
	l.Close()
	if err := <-read; !errors.Is(err, os.ErrClosed) {
		t.Errorf("read: %v, want the end by Close", err)
	}
	if i, err := net.InterfaceByName(name); err != nil || i.Index == first {
		t.Errorf("interface %+v (%v), want a new one", i, err)
	}
}
