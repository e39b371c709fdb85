package acks

import (
	"encoding/binary"
	"testing"
	"time"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/virtio"
)

// An ACK may be lost that soon follows another one of its flow; not one that opens or ends a connection or a window.
func TestRows(t *testing.T) {
	const long = 100 * time.Millisecond
	var r Rows
	now := int64(0)
	windowed := func(b []byte, window uint16) []byte {
		var h inet.Header
		ip := b[virtio.HeaderLen:]
		if err := h.Parse(ip, 0); err != nil {
			t.Fatal(err)
		}
		binary.BigEndian.PutUint16(ip[h.L4+14:], window)
		return b
	}
	ack := func(n uint32) []byte { return windowed(ackOf(n), 100) }
	other := windowed(tcpFrame(7, 8, segmentFields{ack: 1, flags: inet.ACK}), 100)
	for _, c := range []struct {
		what string
		ms   int // after the one before
		b    []byte
		rtt  time.Duration
		want bool
	}{
		{"data", 0, segmentSent(1, 100), long, false},
		{"the handshake's end", 1, ack(1), long, false},
		{"the next", 1, ack(2), long, true},
		{"another flow's first", 0, other, long, false},
		{"a round trip later", 100, ack(3), long, true},
		{"after silence", 101, ack(4), long, false},
		{"what is lost", 1, windowed(received(segmentFields{ack: 4, flags: inet.ACK, options: []byte{1, 1, 5, 10, 0, 0, 0, 9, 0, 0, 0, 10}}), 100), long, true},
		{"the connection's end", 1, received(segmentFields{ack: 5, flags: inet.ACK | inet.FIN}), long, false},
		{"on a shorter path", 10, ack(5), 9 * time.Millisecond, false},
		{"an unknown path", 1, ack(6), 0, false},
		{"the window shuts", 1, windowed(ackOf(7), 0), long, true},
		{"and opens", 1, ack(7), long, false},
		{"and is open", 1, ack(8), long, true},
	} {
		now += int64(c.ms)*int64(time.Millisecond) + 1
		var h inet.Header
		ip := c.b[virtio.HeaderLen:]
		if err := h.Parse(ip, 0); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if got := r.Continues(&h, ip, now, c.rtt); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
		now--
	}
}
