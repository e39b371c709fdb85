package host

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"edgemesh/test/fair"
)

// TestUplinkFlaps: an uplink is down, or has no address, for a moment. The kernel has
// dropped its routes, tells nobody, and everything looks as before: the next SetPaths
// puts them back all the same. Interfaces without paths make none suspect.
func TestUplinkFlaps(t *testing.T) {
	t.Parallel()
	ns := enter(t)
	run(t, uplinkScript+"\nip link add pod0 type veth peer name pod1\nip link set pod0 up")
	makeTUN(t)
	h, p := newHost(t), lanPlan(1)
	mustSet(t, h, p.Host)
	paths := p.Paths(candidates(1))
	mustSetPaths(t, h, paths)
	ctx, cancel := context.WithCancel(context.Background())
	heard, done := make(chan struct{}, 1000), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := ns.Set(); err != nil {
			done <- err
			return
		}
		done <- h.WatchUplinks(ctx, func() { heard <- struct{}{} })
	}()
	fair.Eventually(t, deadline, "a change is heard", fair.True(func() bool {
		run(t, "ip link set pod0 alias x")
		return len(heard) > 0
	}))
	quiet(heard)
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
		quiet(heard)
		if h.PathsSuspect() {
			t.Errorf("%s: an interface without paths makes paths suspect", name)
		}
		if err := flap(); err != nil {
			t.Fatal(err)
		}
		fair.Eventually(t, deadline, name+": the paths are suspect", fair.True(h.PathsSuspect))
		mustSetPaths(t, h, paths)
		wantContains(t, name, run(t, "ip route show table 5210"), "10.244.2.0/28 via 192.168.1.20 dev up0")
		wantUnchanged(t, h, p.Host)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestUplinks: private addresses of links to other hosts, and no others.
func TestUplinks(t *testing.T) {
	enter(t)
	run(t, `
ip link add eth0 type veth peer name far0
ip link set far0 up
ip link set eth0 up mtu 1400 address 02:00:00:00:00:10
ip addr add 192.168.1.10/24 dev eth0
ip addr add 10.9.0.5/16 dev eth0
ip addr add 5.5.5.5/24 dev eth0
ip addr add 100.64.0.5/24 dev eth0
ip addr add 10.244.77.1/24 dev eth0
ip addr add fd99::10/64 dev eth0 nodad
ip addr add 2001:db8::10/64 dev eth0 nodad
ip addr add fd00:77::1/64 dev eth0 nodad
ip link add docker0 type bridge
ip addr add 172.17.0.1/16 dev docker0
ip link set docker0 up
ip link add lan1 link eth0 type macvlan mode bridge
ip link set lan1 up address 02:00:00:00:00:11
ip addr add 172.16.0.9/24 dev lan1
ip link add eth1 type veth peer name far1
ip link set eth1 up
ip addr add 192.168.2.10/24 dev eth1
ip link add eth2 type veth peer name far2
ip link set far2 up
ip addr add 192.168.3.10/24 dev eth2
ip link add kube0 type vxlan id 5 dstport 4789
ip addr add 192.168.4.10/24 dev kube0
ip link set kube0 up
ip link set lo up
ip addr add 192.168.5.10/32 dev lo`)
	makeTUN(t)
	h := newHost(t)
	mustSet(t, h, dual())
	all, err := h.Uplinks()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, u := range all {
		got = append(got, fmt.Sprintf("%s %s/%d %d %x", u.Link, u.Addr, u.Bits, u.MTU, u.MAC))
	}
	want := []string{ // eth1 has no carrier, eth2 is down; 10.244.77.1 and fd00:77::1 are inside the pod ranges
		"eth0 10.9.0.5/16 1400 020000000010", "eth0 192.168.1.10/24 1400 020000000010", "eth0 2001:db8::10/64 1400 020000000010",
		"eth0 fd99::10/64 1400 020000000010", "lan1 172.16.0.9/24 1400 020000000011",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
