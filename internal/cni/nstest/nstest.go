// Package nstest makes network namespaces for tests.
package nstest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// watcher reads the paths of namespaces, one per line, and removes those that remain when
// this process has ended for any reason.
var watcher = sync.OnceValues(func() (io.Writer, error) { //nolint:gochecknoglobals // one for the process
	const script = `all=; while read -r p; do all="$all $p"; done; for p in $all; do umount -l "$p"; rm -f "$p"; done`
	c := exec.Command("sh", "-c", script)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // survives a Ctrl-C
	in, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	return in, c.Start()
})

// New creates a namespace with a random name and lo up. It is removed with the test, even
// if that is killed.
func New(t testing.TB) ns.NetNS {
	t.Helper()
	netns, err := testutils.NewNS()
	if err != nil {
		t.Fatal(err)
	}
	if w, err := watcher(); err != nil {
		t.Errorf("watcher of namespaces: %v", err)
	} else if _, err := fmt.Fprintln(w, netns.Path()); err != nil {
		t.Errorf("watcher of namespaces: %v", err)
	}
	t.Cleanup(func() {
		if err := Drop(netns); err != nil {
			t.Errorf("remove namespace %s: %v", netns.Path(), err)
		}
	})
	err = netns.Do(func(ns.NetNS) error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	if err != nil {
		t.Fatal(err)
	}
	return netns
}

// Drop removes a namespace's name immediately, even while a process has it open. It does
// nothing if the name is gone.
func Drop(netns ns.NetNS) error {
	_ = netns.Close() // the error of a second Close means nothing
	if _, err := os.Stat(netns.Path()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := unix.Unmount(netns.Path(), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return os.Remove(netns.Path())
}
