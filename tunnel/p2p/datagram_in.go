package p2p

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"edgemesh/tunnel/p2p/sealed"
)

// datagramIn is the receiving end of one direction of one path.
type datagramIn struct {
	p       *path
	index   uint32
	arrived chan uint32 // probes to be confirmed on the stream

	mu      sync.Mutex
	opener  *sealed.Opener
	sink    DatagramSink
	closed  bool
	touched bool // took something that was not flushed
	bytes   int  // of datagrams for the sink since the last flush
}

// serve keeps the stream until the sender ends it.
func (in *datagramIn) serve(s network.Stream) error {
	ended := make(chan error, 1)
	in.p.n.spawn(func() {
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
		case <-in.p.ctx.Done():
			return nil
		case id := <-in.arrived:
			if out := in.p.datagrams.Load(); out != nil && out.sendOwn(kindArrived, id, 0) == nil {
				continue
			}
			_ = s.SetWriteDeadline(time.Now().Add(setupTimeout))
			if _, err := s.Write(binary.BigEndian.AppendUint32(nil, id)); err != nil {
				return fmt.Errorf("confirm a probe: %w", err)
			}
		}
	}
}

// socketDatagrams hands the sealed packets of one socket to whom they are for. It
// belongs to the socket's reader.
type socketDatagrams struct {
	d       *datagrams
	touched []*datagramIn
	last    *datagramIn
	index   uint32
	table   *map[uint32]*datagramIn
}

func (sd *socketDatagrams) take(b []byte) {
	index, table := sealed.Index(b), sd.d.in.Load()
	if sd.last == nil || index != sd.index || table != sd.table {
		sd.last, sd.index, sd.table = (*table)[index], index, table
	}
	if in := sd.last; in != nil && in.take(b) {
		sd.touched = append(sd.touched, in)
	}
}

func (sd *socketDatagrams) taken() {
	for i, in := range sd.touched {
		in.flush()
		sd.touched[i] = nil
	}
	sd.touched = sd.touched[:0]
}

// take opens a packet. It reports whether the session has to be flushed and was
// not to be before. What does not open is ignored: anybody can have sent it.
func (in *datagramIn) take(b []byte) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return false
	}
	payload, err := in.opener.Open(b)
	if err != nil {
		return false
	}
	first := !in.touched
	in.touched = true
	switch {
	case len(payload) == 0:
	case payload[0] < ownKinds:
		in.bytes += len(b)
		in.sink.Datagram(payload)
	case len(payload) >= 5:
		in.own(payload[0], binary.BigEndian.Uint32(payload[1:]))
	}
	return first
}

// own takes a payload of this package.
func (in *datagramIn) own(kind byte, id uint32) {
	switch kind {
	case kindArrived:
		if out := in.p.datagrams.Load(); out != nil {
			out.confirm(id)
		}
	case kindProbe:
		select {
		case in.arrived <- id:
		default: // the sender will ask again
		}
	}
}

func (in *datagramIn) flush() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.touched = false
	if in.closed {
		return
	}
	in.sink.Flush()
	if in.bytes > 0 {
		in.p.received(in.bytes)
		in.bytes = 0
		return
	}
	in.p.hear()
}
