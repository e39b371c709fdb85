package p2p

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
)

// watch pings c until it ends, and ends it when there is no answer. It returns
// after the first answer on a new connection.
func (l *relayLink) watch(c network.Conn) {
	l.mu.Lock()
	known := l.pinged[c]
	l.pinged[c] = true
	l.mu.Unlock()
	if known {
		return
	}
	first := make(chan struct{})
	started := l.n.spawn(func() {
		var once sync.Once
		answered := func() { once.Do(func() { close(first) }) }
		l.ping(c, answered)
		answered()
		_ = c.Close()
		l.mu.Lock()
		delete(l.pinged, c)
		delete(l.seen, c)
		l.mu.Unlock()
		l.n.relays.poke(l.info.ID)
	})
	if started {
		<-first
	}
}

// ping returns when c is dead or the link is cancelled.
func (l *relayLink) ping(c network.Conn, answered func()) {
	for l.ctx.Err() == nil && !c.IsClosed() {
		err := l.pingRound(c, answered)
		if err != nil {
			if l.ctx.Err() == nil && !c.IsClosed() {
				e, _ := parseEndpoint(c.RemoteMultiaddr())
				l.n.log.Info("relay does not answer", "relay", l.info.ID, "over", e, "err", err)
			}
			return
		}
	}
}

// pingRound pings over one stream for nearly as long as the other end keeps it
// open, which is 30 s.
func (l *relayLink) pingRound(c network.Conn, answered func()) error {
	ctx, cancel := context.WithTimeout(l.ctx, relaySilence)
	s, err := openOn(ctx, c, ping.ID)
	cancel()
	if err != nil {
		return err
	}
	defer func() { _ = s.Reset() }()
	alive := func() bool { return time.Since(l.n.peers.heardThrough(l.info.ID)) < relaySilence }
	for end := time.Now().Add(pingRound); time.Now().Before(end); {
		rtt, err := pingOnce(s, alive)
		if err != nil {
			return err
		}
		l.mu.Lock()
		l.rtt = rtt
		l.mu.Unlock()
		answered()
		wait := relayPing
		if overUDP(c) && l.n.relays.overTCP(l.info.ID) {
			wait = sparePing
		}
		if !sleep(l.ctx, wait) {
			return nil
		}
	}
	return nil
}

// pingOnce sends one ping (libp2p's ping protocol echoes 32 bytes). The answer
// may be late while alive says that the other end is heard otherwise: under load
// the ping waits behind other data.
func pingOnce(s network.Stream, alive func() bool) (time.Duration, error) {
	buf := make([]byte, ping.PingSize)
	binary.BigEndian.PutUint64(buf, randomToken())
	start := time.Now()
	if err := s.SetWriteDeadline(start.Add(pingPatience)); err != nil {
		return 0, err
	}
	if _, err := s.Write(buf); err != nil {
		return 0, err
	}
	got := make([]byte, 0, ping.PingSize)
	for len(got) < ping.PingSize {
		if err := s.SetReadDeadline(time.Now().Add(relaySilence)); err != nil {
			return 0, err
		}
		n, err := s.Read(got[len(got):cap(got)])
		got = got[:len(got)+n]
		switch {
		case err == nil:
		case isTimeout(err) && alive() && time.Since(start) < pingPatience:
		default:
			return 0, err
		}
	}
	if !bytes.Equal(buf, got) {
		return 0, errors.New("ping came back changed")
	}
	return time.Since(start), nil
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &t) && t.Timeout()
}
