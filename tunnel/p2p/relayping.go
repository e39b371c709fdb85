package p2p

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"

	"edgemesh/internal/causes"
	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/conns"
	"edgemesh/tunnel/p2p/ladder"
)

const (
	// relayTick is how often the traffic through relays is looked at. That costs
	// nothing on the wire.
	relayTick = 250 * time.Millisecond
	// busyThrough is how long circuits count as busy after their last byte, and
	// quietThrough how long they may be silent meanwhile until the relay is asked:
	// busy peers probe each other every ladder.ProbeBusy.
	busyThrough  = 3 * time.Second
	quietThrough = ladder.ProbeBusy + 300*time.Millisecond
	// relaySilence is how long a relay that is asked may be silent.
	relaySilence = 1500 * time.Millisecond
	// askPause is the least time between two questions on one connection.
	askPause = time.Second
	// pingPatience bounds the wait for an answer on a connection that is busy.
	pingPatience = 10 * time.Second
	// measures is how many pings a distance is measured by; the least counts.
	measures = 3
	// overslept is how late a tick is after which the host has slept, or this
	// process stood still.
	overslept = 5 * time.Second
)

// An idle relay is not pinged: what keeps NATs open, and finds a dead connection
// within a minute, is QUIC's and yamux's own keep-alive. It is asked at once when
// something points to trouble: busy circuits fall silent, a path dies, a circuit is
// being opened, this host's addresses change.

// keepWatch asks relays that may be gone, until the node ends.
func (rs *relaySet) keepWatch(ctx context.Context) {
	tick := time.NewTicker(relayTick)
	defer tick.Stop()
	type flow struct {
		moved uint64
		at    time.Time // of the last byte
	}
	flows := make(map[peer.ID]flow)
	last := rs.n.now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-rs.wake:
			rs.choose()
			rs.tellAll()
			continue
		case <-tick.C:
		}
		woke := rs.n.now()
		if woke-last > overslept {
			rs.suspectAll()
		}
		last = woke
		now := time.Now()
		through := rs.n.peers.through()
		for id, t := range through {
			f := flows[id]
			if t.moved > f.moved {
				f.at = now
				if l := rs.link(id); l != nil {
					l.keepVisit()
				}
			}
			f.moved = t.moved
			flows[id] = f
			if now.Sub(f.at) < busyThrough && now.Sub(t.heard) > quietThrough {
				rs.suspect(id)
			}
		}
		for id := range flows {
			if _, ok := through[id]; !ok {
				delete(flows, id)
			}
		}
		rs.improve(now)
	}
}

// suspect has relay p asked at once, over all connections to it.
func (rs *relaySet) suspect(p peer.ID) {
	if l := rs.link(p); l != nil {
		l.suspect()
	}
}

// suspectAll has all relays asked at once, and those that are away dialed: what
// has cut one path may be a new address of this host or of its site.
func (rs *relaySet) suspectAll() {
	for _, l := range rs.all() {
		l.suspect()
		l.retryNow()
	}
}

func (l *relayLink) suspect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ask := range l.pinged {
		select {
		case ask <- struct{}{}:
		default:
		}
	}
}

// watch looks after c until it ends, and ends it when the relay does not answer.
// It returns after the first answer on a new connection.
func (l *relayLink) watch(c network.Conn) {
	l.mu.Lock()
	known := l.pinged[c] != nil
	ask := make(chan struct{}, 1)
	if !known {
		l.pinged[c] = ask
	}
	l.mu.Unlock()
	if known {
		return
	}
	first := make(chan struct{})
	started := l.n.spawn(func() {
		err := l.measureOn(c)
		close(first)
		for err == nil && l.ctx.Err() == nil {
			err = l.await(c, ask)
		}
		if err != nil && l.ctx.Err() == nil && !c.IsClosed() {
			l.n.log.Info("relay does not answer", "relay", l.info.ID, "over", shortAddr(c.RemoteMultiaddr()), "err", err)
		}
		if err != nil || !l.n.gater.View().IsMember(l.info.ID) {
			_ = c.Close()
		}
		l.mu.Lock()
		delete(l.pinged, c)
		delete(l.seen, c)
		l.mu.Unlock()
		l.poke()
	})
	if started {
		<-first
	}
}

// await waits until c is to be asked, and asks. The error says why c is dead.
func (l *relayLink) await(c network.Conn, ask <-chan struct{}) error {
	t := time.NewTicker(askPause)
	defer t.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return nil
		case <-ask:
			err := l.pingOn(c)
			if err == nil {
				wake.Sleep(l.ctx, askPause)
			}
			return err
		case <-t.C: // the swarm tells of the end of a connection, but not to us
			if c.IsClosed() {
				return errors.New("closed")
			}
		}
	}
}

// measure pings the relay over every connection.
func (l *relayLink) measure() error {
	errs := []error{}
	for _, c := range l.conns() {
		err := l.measureOn(c)
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("no answer over %s: %w", shortAddr(c.RemoteMultiaddr()), err))
	}
	return causes.Join(errs...)
}

// measureOn measures the relay's distance over c.
func (l *relayLink) measureOn(c network.Conn) error {
	ctx, cancel := context.WithTimeout(l.ctx, relayDialTimeout)
	defer cancel()
	s, err := conns.Open(ctx, c, ping.ID)
	if err != nil {
		return err
	}
	defer func() { _ = s.Reset() }()
	least := time.Duration(0)
	for range measures {
		rtt, err := pingOnce(s, time.Now().Add(relaySilence))
		if err != nil {
			return err
		}
		if least == 0 || rtt < least {
			least = rtt
		}
	}
	l.measured(least)
	return nil
}

// measured notes a distance. Of two connections to one relay the faster one
// counts, and the past a little.
func (l *relayLink) measured(rtt time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rtt == 0 || rtt < l.rtt {
		l.rtt = rtt
	} else {
		l.rtt = (3*l.rtt + rtt) / 4
	}
}

// pingOn asks over c. It has relaySilence for the answer, longer as long as the
// relay is heard otherwise: under load the answer waits behind other data.
func (l *relayLink) pingOn(c network.Conn) error {
	ctx, cancel := context.WithTimeout(l.ctx, pingPatience)
	defer cancel()
	answer := make(chan error, 1)
	if !l.n.spawn(func() { answer <- ping1(ctx, c) }) {
		return nil
	}
	heard := time.Now()
	tick := time.NewTicker(relayTick / 2)
	defer tick.Stop()
	for {
		select {
		case err := <-answer:
			if l.ctx.Err() != nil {
				return nil
			}
			return err
		case <-tick.C:
		}
		for _, at := range []time.Time{l.n.peers.heardThrough(l.info.ID), l.n.dialer.Sockets().Heard(c)} {
			if at.After(heard) {
				heard = at
			}
		}
		if silence := time.Since(heard); silence > relaySilence {
			cancel()
			<-answer
			return fmt.Errorf("silent for %v", silence.Round(time.Millisecond))
		}
	}
}

// ping1 sends one ping over c and waits for its answer until ctx ends.
func ping1(ctx context.Context, c network.Conn) error {
	s, err := conns.Open(ctx, c, ping.ID)
	if err != nil {
		return err
	}
	defer func() { _ = s.Reset() }()
	stop := context.AfterFunc(ctx, func() { _ = s.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(pingPatience)
	}
	_, err = pingOnce(s, deadline)
	return err
}

// pingOnce sends one ping (libp2p's ping protocol echoes 32 bytes).
func pingOnce(s network.Stream, deadline time.Time) (time.Duration, error) {
	buf := make([]byte, ping.PingSize)
	binary.BigEndian.PutUint64(buf, mrand.Uint64())
	start := time.Now()
	if err := s.SetDeadline(deadline); err != nil {
		return 0, err
	}
	if _, err := s.Write(buf); err != nil {
		return 0, err
	}
	got := make([]byte, ping.PingSize)
	for n := 0; n < len(got); {
		k, err := s.Read(got[n:])
		n += k
		if err != nil && n < len(got) {
			return 0, err
		}
	}
	if !bytes.Equal(buf, got) {
		return 0, errors.New("ping came back changed")
	}
	return time.Since(start), nil
}
