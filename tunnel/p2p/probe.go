package p2p

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/identity"
)

const (
	// probeTick is how often a busy path is probed, and how often an idle one is
	// looked at.
	probeTick = 500 * time.Millisecond
	// probeIdle is how often an idle path is probed.
	probeIdle = 15 * time.Second
	// A path is dead when a probe is unanswered and nothing was heard for
	// deadAfter, neither from the peer nor by the kernel from the next hop. While
	// the next hop is heard, late answers get deadRelayed on a relayed path and
	// deadIdle on a direct one; so do idle paths, which may have to wake a radio.
	deadAfter   = 1200 * time.Millisecond
	deadRelayed = 3 * time.Second
	deadIdle    = 5 * time.Second
	// busyFor is how long a path counts as busy after its last byte.
	busyFor = 3 * time.Second
)

// probe frames, each side on a stream of its own:
//
//	 0        2      3      4        8               16
//	+--------+------+------+--------+---------------+------------------+
//	| length | type | flag | seq    | token         | observed address |
//	+--------+------+------+--------+---------------+------------------+
//
// All numbers are big-endian; length counts what follows it, at most
// maxProbe bytes. The observed address is a binary multiaddr: where the sender
// sees the receiver (empty on relayed paths). An answer repeats seq. Token names
// the connection in the sender's own books.
const (
	probeRequest = 1 // flag unused
	probeAnswer  = 2 // flag 1: the address observed in the request is really mine
	probeDrop    = 3 // token: the receiver's name of another connection, found dead

	probeHeader = 14 // type to token
	maxProbe    = probeHeader + 256
)

var errBadProbe = errors.New("malformed probe")

// probeFrame is one frame of the probe protocol.
type probeFrame struct {
	typ      byte
	owned    bool
	seq      uint32
	token    uint64
	observed ma.Multiaddr // nil if empty
}

func (f probeFrame) append(b []byte) []byte {
	var obs []byte
	if f.observed != nil {
		obs = f.observed.Bytes()
	}
	if len(obs) > maxProbe-probeHeader {
		obs = nil
	}
	b = binary.BigEndian.AppendUint16(b, uint16(probeHeader+len(obs)))
	flag := byte(0)
	if f.owned {
		flag = 1
	}
	b = append(b, f.typ, flag)
	b = binary.BigEndian.AppendUint32(b, f.seq)
	b = binary.BigEndian.AppendUint64(b, f.token)
	return append(b, obs...)
}

// readProbe reads one frame. It returns errBadProbe, wrapped, for anything that
// is not exactly one.
func readProbe(r io.Reader) (probeFrame, error) {
	var buf [2 + maxProbe]byte
	if _, err := io.ReadFull(r, buf[:2]); err != nil {
		return probeFrame{}, err
	}
	n := int(binary.BigEndian.Uint16(buf[:]))
	if n < probeHeader || n > maxProbe {
		return probeFrame{}, fmt.Errorf("%w: length %d", errBadProbe, n)
	}
	b := buf[2 : 2+n]
	if _, err := io.ReadFull(r, b); err != nil {
		return probeFrame{}, err
	}
	f := probeFrame{typ: b[0], owned: b[1] == 1, seq: binary.BigEndian.Uint32(b[2:]), token: binary.BigEndian.Uint64(b[6:])}
	if f.typ < probeRequest || f.typ > probeDrop || b[1] > 1 {
		return probeFrame{}, fmt.Errorf("%w: type %d, flag %d", errBadProbe, b[0], b[1])
	}
	if obs := b[probeHeader:]; len(obs) > 0 {
		a, err := ma.NewMultiaddrBytes(obs)
		if err != nil {
			return probeFrame{}, fmt.Errorf("%w: %w", errBadProbe, err)
		}
		f.observed = a
	}
	return f, nil
}

// prober probes one path. Requests follow each other without waiting for the
// answers: over a slow path under load those are late, and the requests
// themselves tell the other side that this one is alive.
type prober struct {
	p        *path
	want     chan struct{} // send a request
	answered chan bool     // an answer came; true if to the last request

	mu   sync.Mutex
	seq  uint32
	sent [32]time.Time // of the last requests, by seq
}

// probe watches the path until it ends; it ends a path that is silent.
func (p *path) probe() {
	defer p.cancel()
	ctx, cancel := context.WithTimeout(p.ctx, deadIdle)
	s, err := openOn(ctx, p.conn, identity.PathProtocol)
	cancel()
	if err != nil {
		if p.ctx.Err() == nil && !p.conn.IsClosed() {
			p.kill(fmt.Sprintf("cannot be probed: %v", err))
		}
		return
	}
	pr := &prober{p: p, want: make(chan struct{}, 1), answered: make(chan bool, 1)}
	p.n.spawn(func() { pr.read(s) })
	p.n.spawn(func() { pr.write(s) })
	pr.watch()
	_ = s.SetDeadline(time.Unix(1, 0))
	_ = s.Reset()
}

// watch asks for requests to be sent and judges the silence.
func (pr *prober) watch() {
	p := pr.p
	tick := time.NewTicker(probeTick)
	defer tick.Stop()
	v := vigil{relayed: p.relayed(), busy: time.Now(), heard: time.Now()}
	for {
		if v.due(time.Now()) {
			select {
			case pr.want <- struct{}{}:
			default: // the one before is still stuck
			}
		}
		for waiting := true; waiting; {
			select {
			case <-p.ctx.Done():
				return
			case all := <-pr.answered:
				v.answer(time.Now(), all)
			case <-p.urge:
				waiting = !v.wake(time.Now())
			case <-tick.C:
				waiting = false
			}
		}
		if silence, dead := v.look(time.Now(), p.tx.Load()+p.rx.Load(), p.heardAt(), p.carrierHeard()); dead {
			p.kill(fmt.Sprintf("silent for %v", silence.Round(time.Millisecond)))
			return
		}
	}
}

// write sends the requests. It may be stuck behind bulk data, which is why watch
// does not do it.
func (pr *prober) write(s network.Stream) {
	for {
		select {
		case <-pr.p.ctx.Done():
			return
		case <-pr.want:
		}
		pr.mu.Lock()
		pr.seq++
		pr.sent[pr.seq%uint32(len(pr.sent))] = time.Now()
		f := probeFrame{typ: probeRequest, seq: pr.seq, token: pr.p.token}
		pr.mu.Unlock()
		if !pr.p.relayed() {
			f.observed = pr.p.conn.RemoteMultiaddr()
		}
		if _, err := s.Write(f.append(nil)); err != nil {
			return // silence will tell
		}
	}
}

// read takes the answers.
func (pr *prober) read(s network.Stream) {
	for {
		f, err := readProbe(s)
		if err != nil {
			return
		}
		pr.mu.Lock()
		age := pr.seq - f.seq // wraps around like seq
		sent := pr.sent[f.seq%uint32(len(pr.sent))]
		pr.mu.Unlock()
		if f.typ != probeAnswer || age >= uint32(len(pr.sent)) || sent.IsZero() {
			continue
		}
		select {
		case pr.answered <- age == 0:
		case <-pr.p.ctx.Done():
			return
		}
		pr.p.verify(f, time.Since(sent))
	}
}

// verify notes what an answer says.
func (p *path) verify(f probeFrame, rtt time.Duration) {
	direct := false
	if ip, ok := addrIP(f.observed); ok && !p.relayed() {
		direct = f.owned && p.n.uplinks.owns(ip)
	}
	p.r.set.mu.Lock()
	defer p.r.set.mu.Unlock()
	news := !p.verified || p.direct != direct
	p.verified, p.direct, p.peerToken = true, direct, f.token
	if p.rtt == 0 {
		p.rtt = rtt
	} else {
		p.rtt = (7*p.rtt + rtt) / 8 // as TCP's smoothed RTT, RFC 6298
	}
	if news && !p.dead {
		p.r.reselect()
		p.r.signal()
	}
}

// answerProbes serves the probes of a peer on one connection.
func (ps *peerSet) answerProbes(s network.Stream) {
	p := ps.pathOf(s.Conn())
	if p == nil {
		_ = s.Reset()
		return
	}
	for {
		f, err := readProbe(s)
		if err != nil {
			_ = s.Reset()
			return
		}
		switch f.typ {
		case probeRequest:
			p.hear()
			a := probeFrame{typ: probeAnswer, seq: f.seq, token: p.token}
			if !p.relayed() {
				a.observed = p.conn.RemoteMultiaddr()
			}
			if ip, ok := addrIP(f.observed); ok {
				a.owned = ps.n.uplinks.owns(ip)
			}
			_ = s.SetWriteDeadline(time.Now().Add(deadIdle))
			if _, err := s.Write(a.append(nil)); err != nil {
				_ = s.Reset()
				return
			}
		case probeDrop:
			p.r.drop(f.token)
		}
	}
}

// kill gives the path up: nothing new uses it, what is on it is reset, and the
// peer is told to do the same over another path, because it may not notice.
func (p *path) kill(why string) {
	p.n.log.Info("path is dead", "peer", p.r.name(), "path", p.describe().Kind, "transport", p.transport(), "why", why)
	set := p.r.set
	set.mu.Lock()
	p.dead = true
	p.r.punch.note(fmt.Sprintf("%s path %s", p.transport(), why), time.Now())
	streams := make([]*Stream, 0, len(p.streams))
	for s := range p.streams {
		streams = append(streams, s)
	}
	// What has cut one direct path has often cut them all, and an idle one would
	// not be missed for long.
	for _, sibling := range p.r.paths {
		if !sibling.dead && sibling.relayed() == p.relayed() && sibling.relay == p.relay {
			sibling.suspect()
		}
	}
	other := p.r.pick(identity.StreamProtocol, nil)
	token := p.peerToken
	p.r.reselect()
	p.r.signal()
	set.mu.Unlock()
	for _, s := range streams {
		s.Reset()
	}
	p.n.goClose(p.conn)
	p.n.relays.suspectAll()
	if other != nil && token != 0 {
		p.n.spawn(func() { other.sendDrop(token) })
	}
}

// sendDrop tells the peer that its connection named token is dead.
func (p *path) sendDrop(token uint64) {
	ctx, cancel := context.WithTimeout(p.ctx, openTimeout)
	defer cancel()
	s, err := openOn(ctx, p.conn, identity.PathProtocol)
	if err != nil {
		return
	}
	_ = s.SetWriteDeadline(time.Now().Add(openTimeout))
	_, _ = s.Write(probeFrame{typ: probeDrop, token: token}.append(nil))
	_ = s.Close()
}

// drop gives up the connection that the peer found dead.
func (r *remote) drop(token uint64) {
	r.set.mu.Lock()
	var found *path
	for _, p := range r.paths {
		if p.token == token && !p.dead {
			found = p
		}
	}
	r.set.mu.Unlock()
	if found != nil {
		found.kill("found dead by the peer")
	}
}
