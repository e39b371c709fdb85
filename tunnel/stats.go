package tunnel

import (
	"slices"
	"strings"
	"time"

	"edgemesh/tunnel/epoch"
)

// Counters are packets and bytes since the peer appeared. Bytes are those of IP packets; a super-segment counts as one
// packet.
type Counters struct {
	TxPackets, TxBytes uint64 // wholly handed to a carrier
	RxPackets, RxBytes uint64 // written to the device
	Marked             uint64 // sent with "congestion experienced" (ECN) set here
	Drops              Drops
}

// LaneState is what the sending side of a lane is doing.
type LaneState string

const (
	// LaneIdle has no carrier and nothing to send.
	LaneIdle LaneState = "idle"
	// LaneConnecting has packets waiting for a carrier.
	LaneConnecting LaneState = "connecting"
	// LaneUp has a carrier.
	LaneUp LaneState = "up"
	// LaneMoving has a carrier and is opening a better one.
	LaneMoving LaneState = "moving"
)

// LaneStats describes the sending side of one lane.
type LaneStats struct {
	State         LaneState
	Epoch         uint64 // of the carrier in use, 0 without
	QueuedPackets int
	QueuedBytes   int           // memory held
	Delay         time.Duration // how long what waits has waited at most
	Rate          float64       // bytes per second that the path took when it was busy last; 0: it never was
}

// PeerStats describes one peer.
type PeerStats struct {
	Peer    PeerID
	Idle    bool          // never used, or not for IdleTimeout
	LastUse time.Duration // since the last packet, exact to 100 ms; 0: never used
	Counters
	Lanes   [numLanes]LaneStats // by Lane
	Streams int                 // incoming streams
	Choice  string              // why Pulled takes packets, or carriers do; "": there is no choice
}

// Stats is a snapshot. Total includes packets that no peer was known for, and peers that have left.
type Stats struct {
	Peers []PeerStats // by peer ID
	Total Counters
}

// Stats returns the present numbers.
func (t *Tunnel) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Stats{Total: t.lost.snapshot()}
	for _, p := range t.peers {
		ps := p.stats()
		s.Total.add(ps.Counters)
		s.Peers = append(s.Peers, ps)
	}
	slices.SortFunc(s.Peers, func(a, b PeerStats) int { return strings.Compare(string(a.Peer), string(b.Peer)) })
	return s
}

// StatsOf returns the present numbers of one peer, zero if it is not a peer.
func (t *Tunnel) StatsOf(id PeerID) PeerStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.peers[id]; p != nil {
		return p.stats()
	}
	return PeerStats{}
}

func (c *Counters) add(o Counters) {
	c.TxPackets += o.TxPackets
	c.TxBytes += o.TxBytes
	c.RxPackets += o.RxPackets
	c.RxBytes += o.RxBytes
	c.Marked += o.Marked
	for i, n := range o.Drops {
		c.Drops[i] += n
	}
}

func (p *peer) stats() PeerStats {
	s := PeerStats{Peer: p.id, Idle: !p.busy.Load(), Counters: p.counters.snapshot(), Streams: p.streams.count(), Choice: p.chooser.reason()}
	if last := p.lastUse.Load(); last != 0 {
		s.LastUse = time.Duration(p.t.now() - last)
	}
	for i, l := range p.lanes {
		s.Lanes[i] = l.stats()
	}
	return s
}

func (l *lane) stats() LaneStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := LaneStats{State: LaneIdle, Epoch: l.carriers.Used(), QueuedPackets: l.q.packets, QueuedBytes: l.q.charged, Rate: l.out.drain.Rate()}
	if oldest, ok := l.q.oldest(); ok {
		s.Delay = time.Duration(l.p.t.now() - oldest)
	}
	if l.pulled != nil {
		s.Rate = l.line.Rate
	}
	switch l.carriers.State() {
	case epoch.Up:
		s.State = LaneUp
	case epoch.Moving:
		s.State = LaneMoving
	case epoch.Down:
		if l.writer != writerOff {
			s.State = LaneConnecting
		}
	}
	return s
}
