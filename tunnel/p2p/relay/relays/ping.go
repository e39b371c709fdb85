package relays

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"

	"edgemesh/internal/wake"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/base/conns"
)

const (
	// silenceAtMost is how long a relay that is pinged may be silent.
	silenceAtMost = 1500 * time.Millisecond
	// pingPause is the least time between two pings on one connection.
	pingPause = time.Second
	// pingPatience bounds the wait for an answer on a connection that is busy.
	pingPatience = 10 * time.Second
	// hearEvery is how often a relay that is pinged is listened for otherwise.
	hearEvery = 125 * time.Millisecond
	// measures is how many pings a round-trip time is measured by; the least counts.
	measures = 3
)

// line is one connection to a relay, as long as it is looked after.
type line struct {
	*client
	conn network.Conn
	ping wake.One // ping now, or the connection has ended
}

// watch looks after conn until it ends, and ends it when the relay does not answer. On a new connection it returns after
// the first answer.
func (c *client) watch(conn network.Conn) {
	ping, fresh := c.lines.add(conn)
	if !fresh {
		return
	}
	answered := make(chan struct{})
	if c.Spawn(func() { (&line{c, conn, ping}).run(answered) }) {
		<-answered
	}
}

// run measures the connection, closes answered, and then pings whenever there is a reason to.
func (l *line) run(answered chan<- struct{}) {
	err := l.client.measureOn(l.conn)
	close(answered)
	for err == nil && l.ctx.Err() == nil {
		err = l.await()
	}
	if err != nil && l.ctx.Err() == nil && !l.conn.IsClosed() {
		l.Log.Info("relay does not answer: closing the connection", "relay", l.info.ID, "over", short(l.conn.RemoteMultiaddr()), "err", err)
	}
	if err != nil || !l.Members.View().IsMember(l.info.ID) {
		_ = l.conn.Close()
	}
	l.lines.remove(l.conn)
	l.wake.Wake()
	l.changed.Broadcast()
}

// await waits until the relay is to be pinged, and pings. The error says why the connection is dead.
func (l *line) await() error {
	select {
	case <-l.ctx.Done():
		return nil
	case <-l.ping:
	}
	if l.conn.IsClosed() {
		return errors.New("closed")
	}
	err := l.pingPatiently()
	if err == nil {
		wake.Sleep(l.ctx, pingPause)
	}
	return err
}

// pingPatiently pings. The relay has silenceAtMost for the answer, longer as long as it is heard otherwise: under load
// the answer waits behind other data.
func (l *line) pingPatiently() error {
	ctx, cancel := context.WithTimeout(l.ctx, pingPatience)
	defer cancel()
	answer := make(chan error, 1)
	started := l.Spawn(func() {
		_, err := pings(ctx, l.conn, 1, pingPatience)
		answer <- err
	})
	if !started {
		return nil
	}
	heard := time.Now()
	tick := time.NewTicker(hearEvery)
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
		for _, at := range []time.Time{l.Peers.HeardThrough(l.info.ID), l.Heard(l.conn)} {
			if at.After(heard) {
				heard = at
			}
		}
		if silence := time.Since(heard); silence > silenceAtMost {
			cancel()
			<-answer
			return fmt.Errorf("silent for %v", silence.Round(time.Millisecond))
		}
	}
}

// measure measures the relay's round-trip time over the first connection that answers.
func (c *client) measure() error {
	errs := []error{}
	for _, conn := range c.conns() {
		err := c.measureOn(conn)
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("no answer over %s: %w", short(conn.RemoteMultiaddr()), err))
	}
	return wording.Join(errs...)
}

// measureOn measures the relay's round-trip time over conn.
func (c *client) measureOn(conn network.Conn) error {
	ctx, cancel := context.WithTimeout(c.ctx, DialTimeout)
	defer cancel()
	least, err := pings(ctx, conn, measures, silenceAtMost)
	if err == nil {
		c.outcome.measured(least)
	}
	return err
}

// pings sends n pings over conn, one after the other, and returns the least round-trip time. Each answer has patience, and
// all of them until ctx ends.
func pings(ctx context.Context, conn network.Conn, n int, patience time.Duration) (least time.Duration, err error) {
	s, err := conns.Open(ctx, conn, ping.ID)
	if err != nil {
		return 0, err
	}
	defer func() { _ = s.Reset() }()
	for i := range n {
		_ = s.SetDeadline(time.Now().Add(patience))
		stop := context.AfterFunc(ctx, func() { _ = s.SetDeadline(time.Unix(1, 0)) })
		rtt, err := roundTrip(s)
		stop()
		if err != nil {
			return 0, err
		}
		if i == 0 || rtt < least {
			least = rtt
		}
	}
	return least, nil
}

// roundTrip sends one ping (libp2p's ping protocol echoes 32 bytes) and takes its answer.
func roundTrip(s network.Stream) (time.Duration, error) {
	buf := make([]byte, ping.PingSize)
	binary.BigEndian.PutUint64(buf, rand.Uint64())
	start := time.Now()
	if _, err := s.Write(buf); err != nil {
		return 0, err
	}
	got := make([]byte, ping.PingSize)
	if _, err := io.ReadFull(s, got); err != nil {
		return 0, err
	}
	if !bytes.Equal(buf, got) {
		return 0, errors.New("ping came back changed")
	}
	return time.Since(start), nil
}
