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

	"edgemesh/tunnel/p2p/conns"
	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/identity"
	"edgemesh/tunnel/p2p/ladder"
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
	probeNudge   = 4 // the sender's addresses have changed: direct paths are worth a new attempt

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
	if f.typ < probeRequest || f.typ > probeNudge || b[1] > 1 {
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
	p *path

	mu   sync.Mutex
	seq  uint32
	sent [32]time.Time // of the last requests, by seq
}

// probe sends requests and takes their answers until the path ends.
func (p *path) probe() {
	defer p.cancel()
	ctx, cancel := context.WithTimeout(p.ctx, ladder.DeadIdle)
	s, err := conns.Open(ctx, p.conn, identity.PathProtocol)
	cancel()
	p.r.set.mu.Lock()
	switch {
	case err == nil:
		p.r.tell(ladder.Ready{Path: p.id})
	case p.ctx.Err() == nil && !p.conn.IsClosed():
		p.r.tell(ladder.Broken{Path: p.id, Why: fmt.Sprintf("cannot be probed: %v", err)})
	}
	p.r.set.mu.Unlock()
	if err != nil {
		return
	}
	defer context.AfterFunc(p.ctx, func() {
		_ = s.SetDeadline(time.Unix(1, 0))
		_ = s.Reset()
	})()
	pr := &prober{p: p}
	p.n.spawn(func() { pr.write(s) })
	pr.read(s)
	<-p.ctx.Done()
	_ = s.SetDeadline(time.Unix(1, 0))
	_ = s.Reset()
}

// write sends the requests. It may be stuck behind bulk data.
func (pr *prober) write(s network.Stream) {
	for {
		select {
		case <-pr.p.ctx.Done():
			return
		case <-pr.p.due:
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
		pr.p.answered(f, age == 0, time.Since(sent))
	}
}

// answered notes what an answer says; last, that it answers the last request.
func (p *path) answered(f probeFrame, last bool, rtt time.Duration) {
	direct := false
	if ip, ok := endpoint.IP(f.observed); ok && !p.relayed() {
		direct = f.owned && p.n.addrs.Owns(ip)
	}
	p.r.set.mu.Lock()
	defer p.r.set.mu.Unlock()
	before, _ := p.r.m.Path(p.id)
	news := p.direct != direct
	p.direct, p.peerToken = direct, f.token
	if p.rtt == 0 {
		p.rtt = rtt
	} else {
		p.rtt = (7*p.rtt + rtt) / 8 // as TCP's smoothed RTT, RFC 6298
	}
	p.r.tell(ladder.Answer{Path: p.id, Last: last, Direct: direct})
	if after, _ := p.r.m.Path(p.id); news || after.State != before.State {
		p.r.changed.Broadcast()
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
			if ip, ok := endpoint.IP(f.observed); ok {
				a.owned = ps.n.addrs.Owns(ip)
			}
			_ = s.SetWriteDeadline(time.Now().Add(ladder.DeadIdle))
			if _, err := s.Write(a.append(nil)); err != nil {
				_ = s.Reset()
				return
			}
		case probeDrop:
			p.r.drop(f.token)
		case probeNudge:
			p.r.nudged()
		}
	}
}

// sendDrop tells the peer that its connection named token is dead, and sendNudge
// that this node's addresses have changed.
func (p *path) sendDrop(token uint64) { p.sendFrame(probeFrame{typ: probeDrop, token: token}) }
func (p *path) sendNudge()            { p.sendFrame(probeFrame{typ: probeNudge}) }

// sendFrame sends one frame on a stream of its own.
func (p *path) sendFrame(f probeFrame) {
	ctx, cancel := context.WithTimeout(p.ctx, openTimeout)
	defer cancel()
	s, err := conns.Open(ctx, p.conn, identity.PathProtocol)
	if err != nil {
		return
	}
	_ = s.SetWriteDeadline(time.Now().Add(openTimeout))
	_, _ = s.Write(f.append(nil))
	_ = s.Close()
}

// drop gives up the connection that the peer found dead.
func (r *remote) drop(token uint64) {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	for id, p := range r.paths {
		if p.token == token {
			r.tell(ladder.Broken{Path: id, Why: "found dead by the peer"})
			r.changed.Broadcast()
			return
		}
	}
}

func (r *remote) nudged() {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	r.tell(ladder.Nudged{})
}
