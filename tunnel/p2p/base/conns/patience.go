package conns

import (
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
)

// Patience is how long a relay has to answer a request, and the far end of a circuit to answer the relay. A request for a circuit is
// answered once the far end has answered; libp2p would wait for a minute, obeys no context
// in that time, and makes every other dial of the same peer wait too, also through other
// relays. A relay whose connection to the peer is dead needs half a minute to notice, and would keep a slot for each request until then.
const Patience = 2500 * time.Millisecond

// impatient is a stream that is reset unless it is answered in time.
type impatient struct {
	network.Stream
	timer    *time.Timer
	answered atomic.Bool
}

// Impatient resets s, which was opened unless err is set, if nothing has been read from it after Patience.
func Impatient(s network.Stream, err error) (network.Stream, error) {
	if err != nil {
		return nil, err
	}
	h := &impatient{Stream: s}
	h.timer = time.AfterFunc(Patience, func() {
		if !h.answered.Load() {
			_ = s.SetDeadline(time.Unix(1, 0))
			_ = s.Reset()
		}
	})
	return h, nil
}

func (h *impatient) Read(b []byte) (int, error) {
	n, err := h.Stream.Read(b)
	if n > 0 && !h.answered.Load() {
		h.answered.Store(true)
		h.timer.Stop()
	}
	return n, err
}

func (h *impatient) Close() error { h.timer.Stop(); return h.Stream.Close() }
func (h *impatient) Reset() error { h.timer.Stop(); return h.Stream.Reset() }
