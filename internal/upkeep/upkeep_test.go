package upkeep

import (
	"io"
	"testing"

	"edgemesh/internal/tcptest"
)

// A connection is counted by what the kernel sent: every segment with its headers, and not while it carries pods' bytes.
func TestTCP(t *testing.T) {
	c, s := tcptest.Pair(t)
	b, pods := New(), uint64(0)
	f := b.Follow(Relay, TCP(c), func() uint64 { return pods })
	send := func(n int) {
		if _, err := c.Write(make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(s, make([]byte, n)); err != nil {
			t.Fatal(err)
		}
	}
	before := b.Sums()[Relay]
	send(1000)
	after := b.Sums()[Relay]
	if d := after.Tx - before.Tx; d < 1052 || d > 1052+2*52 {
		t.Errorf("1000 bytes are %d on the wire", d)
	}
	pods = 1
	send(5000)
	if got := b.Sums()[Relay]; got.Tx != after.Tx {
		t.Errorf("%d bytes of a pod count", got.Tx-after.Tx)
	}
	send(100)
	f.End()
	_ = c.Close()
	if d := b.Sums()[Relay].Tx - after.Tx; d < 152 || d > 300 {
		t.Errorf("%d bytes after it, want some 152", d)
	}
	f.End()
	(*Budget)(nil).Add(API, 1, 1)
	(*Budget)(nil).Follow(API, TCP(c), nil).End()
}

// All bytes are either upkeep or carry pods' packets: also those of datagrams that no connection accounts for.
func TestAllIsCounted(t *testing.T) {
	b := New()
	stats, pods := Bytes{}, uint64(0)
	f := b.FollowQUIC(Peer, func() (Bytes, bool) { return stats, true }, func() uint64 { return pods })
	quic := func(n int) {
		b.Wire().All.Sent(n)
		stats.Tx += uint64(n)
	}
	quic(1000)
	b.Wire().All.Sent(72) // a packet that punches
	if got := b.Sums()[Peer]; got != (Bytes{Tx: 1072}) {
		t.Errorf("%+v for a handshake and a punch", got)
	}
	pods = 1
	quic(5000)
	b.Wire().All.Received(2000)
	b.Wire().Sealed.Received(2000)
	if got, carried := b.Sums()[Peer], b.Carried(); got != (Bytes{Tx: 1072}) || carried != (Bytes{5000, 2000}) {
		t.Errorf("%+v, and %+v for 5000 bytes of QUIC and 2000 sealed", got, carried)
	}
	quic(300)
	f.End()
	if got, carried := b.Sums()[Peer], b.Carried(); got != (Bytes{Tx: 1372}) || carried != (Bytes{5000, 2000}) {
		t.Errorf("%+v and %+v in the end", got, carried)
	}
	if (*Budget)(nil).Carried() != (Bytes{}) || (*Budget)(nil).Wire() == nil {
		t.Error("nil counts")
	}
}
