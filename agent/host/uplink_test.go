package host

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// TestUplinkFlaps: an uplink is down, or has no address, for a moment. The kernel has
// dropped its routes, tells nobody, and everything looks as before: the next SetPaths
// puts them back all the same. Interfaces without paths raise no doubt.
func TestUplinkFlaps(t *testing.T) {
	ns := enter(t)
	run(t, uplinkScript+"\nip link add pod0 type veth peer name pod1\nip link set pod0 up")
	makeTUN(t)
	h, p := newHost(t), lanPlan(1)
	mustSet(t, h, p.Host)
	paths := p.Paths(ways(1))
	mustSetPaths(t, h, paths)
	ctx, cancel := context.WithCancel(context.Background())
	heard, done := make(chan struct{}, 1000), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := netns.Set(ns); err != nil {
			done <- err
			return
		}
		done <- h.WatchUplinks(ctx, func() { heard <- struct{}{} })
	}()
	for end := time.Now().Add(deadline); len(heard) == 0; time.Sleep(10 * time.Millisecond) { // until it listens
		if run(t, "ip link set pod0 alias x"); time.Now().After(end) {
			t.Fatal("nothing is heard")
		}
	}
	settle(heard)
	up0, err := netlink.LinkByName("up0")
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := netlink.AddrList(up0, netlink.FAMILY_V4)
	if err != nil || len(addrs) != 1 {
		t.Fatal(addrs, err)
	}
	for name, flap := range map[string]func() error{
		"set down": func() error {
			if err := netlink.LinkSetDown(up0); err != nil {
				return err
			}
			return netlink.LinkSetUp(up0)
		},
		"address": func() error {
			if err := netlink.AddrDel(up0, &addrs[0]); err != nil {
				return err
			}
			return netlink.AddrAdd(up0, &addrs[0])
		},
	} {
		run(t, "ip link set pod0 down\nip link set pod0 up")
		<-heard
		settle(heard)
		if h.PathsInDoubt() {
			t.Errorf("%s: an interface without paths raises doubt", name)
		}
		if err := flap(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(deadline); !h.PathsInDoubt(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: no doubt", name)
			}
		}
		mustSetPaths(t, h, paths)
		wantContains(t, name, run(t, "ip route show table 5210"), "10.244.2.0/28 via 192.168.1.20 dev up0")
		wantUnchanged(t, h, p.Host)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
