package uplinks

import (
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	ma "github.com/multiformats/go-multiaddr"
	"github.com/vishvananda/netlink"

	"edgemesh/tunnel/p2p/who/members"
)

// kernel has addresses, and announces how they change.
type kernel struct {
	owned         map[netip.Addr]bool
	news          chan netlink.AddrUpdate
	reads, subs   int
	gone          []netip.Addr
	changes       int
	late          int // of gone, after a change
	since, goneAt time.Time
}

// watch runs Watch on the kernel's addresses, with a clock of its own, while do changes them.
func (k *kernel) watch(t *testing.T, addrs []string, do func()) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		view := members.NewView("me", members.Membership{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}})
		a := New(func() *members.View { return view }, func() []ma.Multiaddr { return nil })
		k.owned = map[netip.Addr]bool{}
		for _, x := range addrs {
			k.owned[netip.MustParseAddr(x)] = true
		}
		a.list = func() (Reading, error) {
			k.reads++
			return Reading{Owned: maps.Clone(k.owned), Offered: slices.Collect(maps.Keys(k.owned))}, nil
		}
		a.subscribe = func() (<-chan netlink.AddrUpdate, func(), error) {
			k.subs++
			k.news = make(chan netlink.AddrUpdate, 64)
			return k.news, func() {}, nil
		}
		go a.Watch(t.Context(), slog.New(slog.DiscardHandler), func([]netip.Addr) { k.changes++ }, func(x netip.Addr) {
			k.gone, k.goneAt, k.late = append(k.gone, x), time.Now(), k.changes
		})
		synctest.Wait()
		k.since = time.Now()
		do()
		time.Sleep(time.Second)
		synctest.Wait()
	})
}

func (k *kernel) set(addr string, there bool) {
	a := netip.MustParseAddr(addr)
	if k.owned[a] = there; !there {
		delete(k.owned, a)
	}
	k.news <- netlink.AddrUpdate{LinkAddress: net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(24, 32)}, NewAddr: there}
}

// An address that a DHCP client deletes and adds again has not gone; one that stays away has within 0.5 s.
func TestGone(t *testing.T) {
	var k kernel
	k.watch(t, []string{"5.5.9.9", "5.5.9.10"}, func() {
		k.set("5.5.9.9", false)
		time.Sleep(60 * time.Millisecond)
		k.set("5.5.9.9", true)
		time.Sleep(130 * time.Millisecond) // the end of the news that are gathered is 10 ms away
		k.set("5.5.9.10", false)
		time.Sleep(20 * time.Millisecond)
		k.set("5.5.9.10", true)
	})
	if len(k.gone) > 0 {
		t.Errorf("%v are gone, though all are back", k.gone)
	}
	k = kernel{}
	k.watch(t, []string{"5.5.9.9", "5.5.9.10", "10.244.0.9"}, func() {
		k.set("10.244.0.9", false) // a pod's
		k.set("5.5.9.9", false)
	})
	if took := k.goneAt.Sub(k.since); !slices.Equal(k.gone, []netip.Addr{netip.MustParseAddr("5.5.9.9")}) || took > 500*time.Millisecond || k.changes != 1 {
		t.Errorf("%v are gone after %v, %d changes", k.gone, took, k.changes)
	}
}

// An address that goes while news of another are gathered has gone before these are handed on: what was bound to it is then still known.
func TestGoneBeforeChanged(t *testing.T) {
	var k kernel
	k.watch(t, []string{"5.5.9.9"}, func() {
		k.set("5.5.9.10", true)
		time.Sleep(150 * time.Millisecond)
		k.set("5.5.9.9", false)
	})
	if took := k.goneAt.Sub(k.since); len(k.gone) != 1 || k.late != 0 || k.changes == 0 || took > 500*time.Millisecond {
		t.Errorf("%v are gone after %v and %d of %d changes", k.gone, took, k.late, k.changes)
	}
}

// However many addresses go at the same time, the interfaces are read a few times.
func TestManyGone(t *testing.T) {
	var all []string
	for a := netip.MustParseAddr("5.5.9.1"); len(all) < 1000; a = a.Next() {
		all = append(all, a.String())
	}
	var k kernel
	k.watch(t, all, func() {
		k.reads = 0
		for _, a := range all {
			k.set(a, false)
		}
	})
	if len(k.gone) != len(all) || k.reads > 4 {
		t.Errorf("%d of %d are gone, read %d times", len(k.gone), len(all), k.reads)
	}
}

// Where announcements were lost, the kernel is subscribed to again, and what went meanwhile is noticed.
func TestLostNews(t *testing.T) {
	var k kernel
	k.watch(t, []string{"5.5.9.9", "5.5.9.10"}, func() {
		delete(k.owned, netip.MustParseAddr("5.5.9.9"))
		close(k.news)
		time.Sleep(time.Second)
		k.set("5.5.9.10", false)
	})
	if len(k.gone) != 2 || k.subs != 2 {
		t.Errorf("%v are gone after %d subscriptions", k.gone, k.subs)
	}
}
