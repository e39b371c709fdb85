package acks

import (
	"testing"
	"time"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/virtio"
)

// passing gives a Passer packets of 100 ms of round trip.
type passing struct {
	t   *testing.T
	p   Passer
	now int64
}

func (d *passing) at(ms int, b []byte, rtt time.Duration) bool {
	d.t.Helper()
	d.now += int64(ms) * int64(time.Millisecond)
	ip := b[virtio.HeaderLen:]
	var h inet.Header
	if err := h.Parse(ip, 0); err != nil {
		d.t.Fatalf("test packet: %v", err)
	}
	return d.p.Passes(&h, ip, d.now, rtt)
}

// TestPasser: on a loaded long path, an ACK passes that follows another of its flow within a round trip.
func TestPasser(t *testing.T) {
	const long = 100 * time.Millisecond
	d := &passing{t: t, now: int64(time.Minute)}
	want := func(step string, got, want bool) {
		t.Helper()
		if got != want {
			t.Errorf("%s: passes %v, want %v", step, got, want)
		}
	}
	want("no load", d.at(0, ackOf(1), long) || d.at(1, ackOf(2), long), false)
	d.p.Waits(100, d.now)
	want("no data waits", d.at(1, ackOf(2), long) || d.at(1, ackOf(2), long), false)
	d.p.Waits(1400, d.now)
	want("the first", d.at(1, ackOf(3), long), false)
	want("the second", d.at(1, ackOf(4), long), true)
	want("a round trip later", d.at(100, ackOf(5), long), true)
	want("after silence", d.at(101, ackOf(6), long), false)
	want("and the next", d.at(1, ackOf(7), long), true)
	want("a short path", d.at(1, ackOf(8), time.Millisecond), false)
	want("an unknown path", d.at(1, ackOf(9), 0), false)
	want("data", d.at(1, segmentSent(1, 100), long), false)
	want("the end", d.at(1, received(segmentFields{ack: 10, flags: inet.ACK | inet.FIN}), long), false)
	want("another flow's first", d.at(1, tcpFrame(7, 8, segmentFields{ack: 1, flags: inet.ACK}), long), false)
	want("the flow before", d.at(1, ackOf(11), long), true)
	want("the load is over", d.at(1001, ackOf(12), long) || d.at(1, ackOf(13), long), false)
}
