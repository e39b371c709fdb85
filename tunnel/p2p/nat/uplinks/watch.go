package uplinks

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
)

const (
	// debounce is how long the kernel's news of addresses are gathered: a changing
	// uplink makes several.
	debounce = 200 * time.Millisecond
	// pollEvery is how often the addresses are read where the kernel reports nothing, and compareEvery otherwise.
	pollEvery    = 10 * time.Second
	compareEvery = 30 * time.Second
)

// Watch calls gone immediately when an address has left this host, and changed when the addresses that are offered to peers have changed, until
// ctx ends. Those of pods and containers are not among them.
func (a *Addrs) Watch(ctx context.Context, log *slog.Logger, changed func(now []netip.Addr), gone func(netip.Addr)) {
	news := make(chan netlink.AddrUpdate, 64)
	done := make(chan struct{})
	if err := netlink.AddrSubscribe(news, done); err != nil {
		log.Warn("address changes are noticed up to 10 s late: the kernel does not announce them", "err", err)
		news = nil
	}
	defer func(c chan netlink.AddrUpdate) {
		close(done)
		for c != nil {
			if _, ok := <-c; !ok { // the library's goroutine has ended
				return
			}
		}
	}(news)
	a.forget(news != nil)
	for known := a.sorted(); ; {
		pause := pollEvery
		if news != nil {
			pause = compareEvery
		}
		select {
		case <-ctx.Done():
			return
		case n, ok := <-news:
			if !ok {
				news = nil
				continue
			}
			if !a.gather(ctx, n, news, gone) {
				return
			}
		case <-time.After(pause):
		}
		a.forget(news != nil)
		if now := a.sorted(); !slices.Equal(now, known) {
			known = now
			changed(now)
		}
	}
}

func (a *Addrs) sorted() []netip.Addr {
	now := a.Offered()
	slices.SortFunc(now, netip.Addr.Compare)
	return now
}

// gather takes the news of the next moment, n being the first; it returns false when ctx ended first.
func (a *Addrs) gather(ctx context.Context, n netlink.AddrUpdate, news <-chan netlink.AddrUpdate, gone func(netip.Addr)) bool {
	end := time.NewTimer(debounce)
	defer end.Stop()
	left := func(n netlink.AddrUpdate) {
		ip, ok := netip.AddrFromSlice(n.LinkAddress.IP)
		if ip = ip.Unmap(); n.NewAddr || !ok || !ip.IsGlobalUnicast() || a.view().InCluster(ip) {
			return
		}
		a.forget(true)
		if !a.Owns(ip) { // else another interface has it, or it is back
			gone(ip)
		}
	}
	left(n)
	for open := news; ; {
		select {
		case n, ok := <-open:
			if !ok {
				open = nil
				continue
			}
			left(n)
		case <-end.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
}
