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
	// confirm is how long an address has to be absent until it counts as gone: DHCP clients and network managers delete addresses
	// and add them again.
	confirm = 100 * time.Millisecond
	// debounce is how long the kernel's news of addresses are gathered: a changing
	// uplink makes several.
	debounce = 200 * time.Millisecond
	// pollEvery is how often the addresses are read where the kernel reports nothing, and compareEvery otherwise.
	pollEvery    = 10 * time.Second
	compareEvery = 30 * time.Second
)

// Watch calls gone once an address has left this host, and changed when the addresses that are offered to peers have changed, until
// ctx ends. Those of pods and containers are not among them.
func (a *Addrs) Watch(ctx context.Context, log *slog.Logger, changed func(now []netip.Addr), gone func(netip.Addr)) {
	w := watcher{a: a, log: log, gone: gone, left: make(map[netip.Addr]time.Time), stop: func() {}}
	w.subscribe()
	defer func() { w.stop() }()
	w.compare()
	known := a.sorted()
	due, judge := time.NewTimer(w.pause()), time.NewTimer(0)
	defer due.Stop()
	defer judge.Stop()
	for gathering, held := false, false; ; {
		select {
		case <-ctx.Done():
			return
		case n, ok := <-w.news:
			judging := len(w.left) > 0
			w.take(n, ok)
			if !judging {
				judge.Reset(confirm)
			}
			if !gathering {
				gathering = true
				due.Reset(debounce)
			}
			continue
		case <-judge.C:
			if len(w.left) == 0 {
				continue
			}
			w.compare()
		case <-due.C:
			gathering = false
			if w.news == nil {
				w.subscribe()
			}
			due.Reset(w.pause())
			w.compare()
			now := a.sorted()
			held = !held && len(w.left) > 0 && !slices.Equal(now, known) // what may have gone is judged first: changed has sources chosen again
			if held {
				gathering = true
				due.Reset(confirm)
			} else if !slices.Equal(now, known) {
				known = now
				changed(now)
			}
		}
		judge.Reset(confirm)
	}
}

// watcher finds out which addresses have gone. The kernel's news say when; what is on the host then decides.
type watcher struct {
	a     *Addrs
	log   *slog.Logger
	gone  func(netip.Addr)
	news  <-chan netlink.AddrUpdate // nil: there are none
	stop  func()                    // ends them
	owned map[netip.Addr]bool       // as last read
	left  map[netip.Addr]time.Time  // when what may have gone was missed first
	warn  bool                      // that there are no news
	said  time.Time                 // when it was logged that some were lost
}

func (w *watcher) subscribe() {
	news, stop, err := w.a.subscribe()
	if err != nil {
		if !w.warn {
			w.log.Warn("address changes are noticed up to 10 s late: the kernel does not announce them", "err", err)
		}
		w.warn = true
		return
	}
	w.news, w.stop, w.warn = news, stop, false
}

func (w *watcher) pause() time.Duration {
	if w.news != nil {
		return compareEvery
	}
	return pollEvery
}

// take notes what the kernel announces; !ok: it has dropped announcements, and the library has stopped.
func (w *watcher) take(n netlink.AddrUpdate, ok bool) {
	if !ok {
		if now := time.Now(); now.Sub(w.said) >= time.Minute {
			w.said = now
			w.log.Info("the kernel's announcements of address changes were too many and some are lost: addresses are read again")
		}
		w.stop()
		w.news, w.stop = nil, func() {}
		return
	}
	ip, ok := netip.AddrFromSlice(n.LinkAddress.IP)
	if ip = ip.Unmap(); ok && !n.NewAddr {
		w.miss(ip)
	}
}

func (w *watcher) miss(ip netip.Addr) {
	if _, ok := w.left[ip]; !ok && ip.IsGlobalUnicast() && !w.a.view().InCluster(ip) {
		w.left[ip] = time.Now()
	}
}

// compare reads the addresses once, and calls gone for those that have been absent for long enough.
func (w *watcher) compare() {
	w.a.forget(w.news != nil)
	now := w.a.now().Owned
	for ip := range w.owned {
		if !now[ip] {
			w.miss(ip)
		}
	}
	w.owned = now
	for ip, since := range w.left {
		switch {
		case now[ip]: // another interface has it, or it is back
			delete(w.left, ip)
		case time.Since(since) >= confirm:
			delete(w.left, ip)
			w.gone(ip)
		}
	}
}

// subscribe has the kernel announce changes of addresses, until stop is called; the channel is closed where some were lost.
func subscribe() (news <-chan netlink.AddrUpdate, stop func(), err error) {
	c, done := make(chan netlink.AddrUpdate, 64), make(chan struct{})
	if err := netlink.AddrSubscribe(c, done); err != nil {
		return nil, nil, err
	}
	return c, func() {
		close(done)
		for range c { // until the library's goroutine has ended
		}
	}, nil
}

func (a *Addrs) sorted() []netip.Addr {
	now := a.Offered()
	slices.SortFunc(now, netip.Addr.Compare)
	return now
}
