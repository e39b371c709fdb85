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
	"github.com/vishvananda/netns"
	"go.uber.org/goleak"

	"edgemesh/tunnel/tun"
)

// A deleted TUN is made again by the Read that notices it.
func TestDeletedTUNIsMadeAgain(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: network namespaces need root")
	}
	defer goleak.VerifyNone(t)
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	ns, err := netns.New()
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
	back := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		back <- waitForLink(ns, name)
		l.Close()
	}()
	buf := make([]byte, 1<<17)
	for err == nil {
		_, err = l.Read(buf) // what the new interface says by itself, then the end
	}
	if !errors.Is(err, os.ErrClosed) {
		t.Errorf("read: %v, want the end by Close", err)
	}
	if err := <-back; err != nil {
		t.Fatal(err)
	}
	if i, err := net.InterfaceByName(name); err != nil || i.Index == first {
		t.Errorf("interface %+v (%v), want a new one", i, err)
	}
}

func waitForLink(ns netns.NsHandle, name string) error {
	err := netns.Set(ns)
	for end := time.Now().Add(20 * time.Second); err == nil && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if _, err := net.InterfaceByName(name); err == nil {
			return nil
		}
	}
	if err == nil {
		err = errors.New("the interface does not come back")
	}
	return err
}
