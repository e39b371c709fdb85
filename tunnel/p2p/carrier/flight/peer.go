package flight

import "edgemesh/tunnel/pull"

// Source is where packets take what they carry. The calls come from Path.Next, and of Waits from Path.Quiet.
type Source interface {
	// Waits says of both kinds whether there are any.
	Waits() (stream, datagram bool)
	// Stream returns the next frame and its bucket, or nil.
	Stream(now float64) (f pull.Frame, bucket int)
	// Datagram returns the next datagram if it has at most room bytes, or nil. It is valid until the next call.
	Datagram(now float64, room int) []byte
}

// Sink takes what arrives. The calls come from Path.Receive; b is valid during the call only.
type Sink interface {
	// Stream takes a bucket's next bytes, and returns how many it keeps, of a frame that is not whole.
	Stream(bucket int, b []byte) (begun int)
	// Restart says that the next bytes of a bucket begin a frame, whatever came before: the rest of that will not come.
	Restart(bucket int)
	// Datagram takes one.
	Datagram(b []byte)
}

// Peer is what all paths to a peer share: buckets, with one offset space. It belongs to one process of the peer.
type Peer struct {
	out     outgoing
	in      assembly
	refused Refused
	count   Counters
}

// Counters are of all paths.
type Counters struct {
	Packets, Resent, Spurious, Probes uint64 // packets sent; bytes of pieces sent again; packets repaired though they had arrived; probe timeouts
	Sums, Computed                    uint64 // parities sent; packets computed from them
	Restarts                          uint64 // of a bucket, since a piece was not acknowledged in time
	Acks                              uint64 // packets that are only ACKs
}

// NewPeer makes a peer. Leave and Close give back what it has of a memory.
func NewPeer(source Source, sink Sink, of *Memory) *Peer {
	p := &Peer{in: assembly{sink: sink, held: share{of: of}, begun: share{of: of}}}
	p.out = outgoing{source: source, count: &p.count, held: share{of: of}}
	return p
}

// Close gives up all pieces behind holes, and frames that have begun. Nothing may arrive afterwards.
func (p *Peer) Close() {
	for i := range p.in.buckets {
		p.in.clear(&p.in.buckets[i], i)
	}
}

// Leave hands over, bucket by bucket and in order, all frames that the peer may not have whole: another carrier sends them. The
// caller calls their Done. Some of them may have arrived. Each of their buckets begins again.
func (p *Peer) Leave(yield func(bucket int, f pull.Frame)) {
	for i := range p.out.buckets {
		p.out.restart(i, func(f *frame) { yield(i, f.Frame) })
	}
}

// Held is memory in frames that are not acknowledged, and in pieces behind holes and frames that have begun.
func (p *Peer) Held() (sending, receiving int) {
	return p.out.held.bytes, p.in.held.bytes + p.in.begun.bytes
}

// Counters returns what happened so far.
func (p *Peer) Counters() Counters { return p.count }

// Refused returns what was not taken so far.
func (p *Peer) Refused() Refused { return p.refused }
