package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/carrier/sealed"
)

// receiver is the receiving direction of a session.
type receiver struct {
	out     *sending // the other direction
	peer    peer.ID
	index   uint32
	arrived chan uint32 // probes to confirm
	over    wake.One    // the session is to end
	flight  *flightPath // whose packets these are; nil: they are datagrams for the sink

	// mu guards the rest. The sink is called with it held, so the locks of the sink come after it.
	mu      sync.Mutex
	opener  *sealed.Opener
	sink    Sink
	closed  bool
	touched bool // has taken a packet since the last flush
	bytes   int  // of packets for the sink since the last flush
}

func newReceiver(out *sending, from peer.ID) *receiver {
	return &receiver{out: out, peer: from, arrived: make(chan uint32, 16), over: wake.NewOne()}
}

// serve confirms probes until the sender ends the stream.
func (r *receiver) serve(s network.Stream) error {
	defer r.out.late()
	ended := make(chan error, 1)
	r.out.cfg.Spawn(func() {
		var b [1]byte
		_, err := s.Read(b[:])
		switch {
		case errors.Is(err, io.EOF):
			err = nil
		case err == nil:
			err = fmt.Errorf("%w: more than an offer", errBadSetup)
		}
		ended <- err
	})
	for {
		select {
		case err := <-ended:
			return err
		case <-r.out.ctx.Done():
			return nil
		case <-r.over:
			return errReplaced
		case id := <-r.arrived:
			if out := r.out.now.Load(); out != nil && out.sendOwn(kindArrived, id, 0) == nil {
				continue
			}
			_ = s.SetWriteDeadline(time.Now().Add(setupTimeout))
			if _, err := s.Write(binary.BigEndian.AppendUint32(nil, id)); err != nil {
				return fmt.Errorf("confirm a probe: %w", err)
			}
		}
	}
}

// end has the session end. It does not wait.
func (r *receiver) end() { r.over.Wake() }

// take opens a packet. It reports whether it is the first one since the last flush. What does not open is
// counted and ignored: anybody can have sent it.
func (r *receiver) take(b []byte, from *received) bool {
	r.lock()
	defer r.unlock()
	if r.closed {
		return false
	}
	if len(b) > maxPacket {
		r.out.refuse(RefusedOversize, r.out.path)
		return false
	}
	if r.flight != nil {
		if !r.flight.open(b, from) {
			return false
		}
		r.bytes += len(b)
		first := !r.touched
		r.touched = true
		return first
	}
	payload, err := r.opener.Open(b)
	switch {
	case errors.Is(err, sealed.ErrReplayed):
		r.out.refuse(RefusedReplayed, r.out.path)
		return false
	case err != nil:
		r.out.refuse(RefusedForged, r.out.path)
		return false
	}
	first := !r.touched
	r.touched = true
	switch {
	case len(payload) == 0:
	case payload[0] < ownKinds:
		r.bytes += len(b)
		r.sink.Datagram(payload)
	case len(payload) >= 5:
		r.own(payload[0], binary.BigEndian.Uint32(payload[1:]))
	}
	return first
}

// own takes a payload of the package's own. One of another kind means nothing.
func (r *receiver) own(kind byte, id uint32) {
	switch kind {
	case kindArrived:
		for _, out := range []*sender{r.out.now.Load(), r.out.next.Load()} {
			if out != nil {
				out.note(id)
			}
		}
	case kindProbe:
		select {
		case r.arrived <- id:
		default: // the sender will probe again
		}
	}
}

// flush flushes the sink, and counts for the path what arrived.
func (r *receiver) flush() {
	r.lock()
	defer r.unlock()
	r.touched = false
	if r.closed {
		return
	}
	if x := r.flight; x != nil {
		x.of.lanes.Flush()
		x.arrived()
	} else {
		r.sink.Flush()
	}
	if r.bytes > 0 {
		r.out.path.Received(r.bytes)
		r.bytes = 0
		return
	}
	r.out.path.Heard()
}

// close closes the sink; nothing is taken afterwards.
func (r *receiver) close() {
	r.lock()
	defer r.unlock()
	r.closed = true
	if r.sink != nil {
		r.sink.Close()
	}
}

// lock locks mu, or that of the peer whose packets these are.
func (r *receiver) lock() {
	if r.flight != nil {
		r.flight.of.mu.Lock()
		return
	}
	r.mu.Lock()
}

func (r *receiver) unlock() {
	if r.flight != nil {
		r.flight.of.mu.Unlock()
		return
	}
	r.mu.Unlock()
}
