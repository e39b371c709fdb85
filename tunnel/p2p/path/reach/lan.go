package reach

import (
	"context"
	"net/netip"
	"time"

	"edgemesh/tunnel/p2p/base/endpoint"
)

// lanTimeout is how long a member is searched on the local network: its answer comes
// within milliseconds, or the query was lost and is repeated.
const lanTimeout = 1500 * time.Millisecond

// onLAN searches the peer on the local network, and dials it there.
func (s *Search) onLAN(ctx context.Context) {
	fctx, cancel := context.WithTimeout(ctx, lanTimeout)
	defer cancel()
	id := s.peer.ID().String()
	for _, place := range s.LAN.Find(fctx, id) {
		for _, e := range []endpoint.Endpoint{
			{Addr: netip.AddrPortFrom(place.Addr, place.TCP)},
			{Addr: netip.AddrPortFrom(place.Addr, place.UDP), UDP: true},
		} {
			if !e.Valid() || !s.Addrs.Dialable(e) || s.Targets.Check(s.peer.ID(), e) != nil {
				continue
			}
			err := s.dial(ctx, e, 0)
			if err == nil {
				s.Log.Info("found on the local network", "peer", s.peer.Name(), "at", e)
				return
			}
			s.Log.Debug("dial on the local network", "peer", s.peer.Name(), "at", e, "err", err)
		}
	}
	if ctx.Err() == nil && !s.peer.Connected() {
		s.LAN.Forget(id) // query again next time
	}
}
