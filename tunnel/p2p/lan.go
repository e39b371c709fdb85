package p2p

import (
	"context"
	"net/netip"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/mdns"
)

// lanTime is how long a member is looked for on the LAN: its answer comes within
// milliseconds, or the question was lost and is asked again.
const lanTime = 1500 * time.Millisecond

// startLAN begins to answer and ask on the local network. Where that is not possible,
// another program holding the port for itself, the node does without.
func (n *Node) startLAN(mark uint32) {
	cfg := mdns.Config{Self: n.ID().String(), Mark: mark, Log: n.log,
		IsMember: func(id string) bool {
			p, err := peer.Decode(id)
			return err == nil && n.gater.View().IsMember(p)
		},
		Uplinks: n.addrs.LAN,
	}
	cfg.TCP, cfg.UDP = n.dialer.Ports()
	f, err := mdns.New(cfg)
	if err != nil {
		n.log.Warn("members on the local network are not searched: UDP port 5353 cannot be shared", "err", err)
		return
	}
	n.lan.Store(f)
	if !n.spawn(func() { f.Run(n.ctx) }) {
		f.Close()
	}
}

// dialOnLAN looks for the peer on the local network, and dials it there.
func (r *remote) dialOnLAN(ctx context.Context) {
	n := r.set.n
	f := n.lan.Load()
	if f == nil {
		return
	}
	fctx, cancel := context.WithTimeout(ctx, lanTime)
	defer cancel()
	id := r.id.String()
	for _, place := range f.Find(fctx, id) {
		for _, e := range []endpoint.Endpoint{
			{Addr: netip.AddrPortFrom(place.Addr, place.TCP)},
			{Addr: netip.AddrPortFrom(place.Addr, place.UDP), UDP: true},
		} {
			if !e.Valid() || !n.addrs.Dialable(e) {
				continue
			}
			err := n.dialer.Dial(ctx, e.Multiaddr(), r.id)
			if err == nil {
				err = r.arrived(ctx)
			}
			if err == nil {
				n.log.Info("found on the local network", "peer", r.name(), "at", e)
				return
			}
			n.log.Debug("dial on the local network", "peer", r.name(), "at", e, "err", err)
		}
	}
	if ctx.Err() == nil && !r.connected() {
		f.Forget(id) // ask afresh next time
	}
}
