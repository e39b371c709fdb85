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
