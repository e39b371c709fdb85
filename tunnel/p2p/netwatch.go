package p2p

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"edgemesh/tunnel/p2p/ladder"
)

const (
	// netSettle is how long the kernel's news of addresses are gathered: a
	// changing uplink makes several.
	netSettle = 200 * time.Millisecond
	// netLook is how often the addresses are looked at where the kernel tells
	// nothing.
	netLook = 10 * time.Second
)

// watchNet has relays asked, and tells all peers' machines, when the addresses
// that are offered to peers have changed. Those of pods and containers are not among them.
func (n *Node) watchNet(ctx context.Context) {
	news := make(chan netlink.AddrUpdate, 64)
	done := make(chan struct{})
	if err := netlink.AddrSubscribe(news, done); err != nil {
		n.log.Warn("the kernel does not tell of address changes: they are looked for every 10 s", "err", err)
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
	known := n.uplinkAddrs()
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-news:
			if !ok {
				news = nil
				continue
			}
			if !sleep(ctx, netSettle) {
				return
			}
			drain(news)
		case <-time.After(netLook):
		}
		n.uplinks.forget()
		if now := n.uplinkAddrs(); !slices.Equal(now, known) {
			known = now
			n.log.Info("addresses of this node changed", "now", now)
			n.nat.again()
			n.relays.suspectAll()
			n.peers.netChanged()
		}
	}
}

func drain[T any](c <-chan T) {
	for {
		select {
		case _, ok := <-c:
			if !ok {
				return
			}
		default:
			return
		}
	}
}

// uplinkAddrs returns the addresses of this node's uplinks, in order.
func (n *Node) uplinkAddrs() []netip.Addr {
	out := n.uplinks.offer(n.gater.View())
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// netChanged has every peer's paths probed, and better ones tried.
func (ps *peerSet) netChanged() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, r := range ps.m {
		clear(r.punch.strangers) // this may be another LAN
		r.tell(ladder.NetChanged{})
	}
}
