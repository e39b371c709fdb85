// Package nstest makes network namespaces for tests.
package nstest

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// New makes a namespace of a random name with lo up, gone with the test.
func New(t testing.TB) ns.NetNS {
	t.Helper()
	netns, err := testutils.NewNS()
	if err != nil {
		t.Fatal(err)
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

// Drop removes a namespace's name at once, even while somebody has it open.
// Once it is gone, Drop does nothing.
func Drop(netns ns.NetNS) error {
	_ = netns.Close() // a second Close is an error that says nothing
	if _, err := os.Stat(netns.Path()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := unix.Unmount(netns.Path(), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return os.Remove(netns.Path())
}
