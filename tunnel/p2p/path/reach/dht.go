package reach

import (
	"context"
	"errors"
	"fmt"
	"time"

	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/nat/targets"
)

// findTimeout bounds a query to the DHT: one about a peer that has just gone may otherwise
// take half a minute.
const findTimeout = 3 * time.Second

// byDHT looks the peer up in the DHT, and dials it there.
func (s *Search) byDHT(ctx context.Context) error {
	fctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	info, err := s.DHT.FindPeer(fctx, s.peer.ID())
	if s.peer.Connected() { // the query itself may dial the peer
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up in DHT: %w", conns.Plain(err))
	}
	errs := []error{errors.New("no address in the DHT answers")}
	for _, a := range info.Addrs {
		e, ok := endpoint.Parse(a)
		if !ok || !s.Addrs.Dialable(e) {
			continue // circuits were tried
		}
		most, err := s.Targets.Take(s.peer.ID(), e, targets.LastBudget)
		if err == nil {
			err = s.dial(ctx, e, most)
		}
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			errs = append(errs, fmt.Errorf("%s: %w", e, err))
		}
	}
	return wording.Join(errs...)
}
