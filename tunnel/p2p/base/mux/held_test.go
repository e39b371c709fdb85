package mux

import (
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/tcptest"
	"edgemesh/test/fair"
)

const patience = 20 * time.Second

// scopeOf is a peer's scope in which it may have so much memory, and how much of that is taken.
func scopeOf(t *testing.T, memory int64) (network.PeerScope, func() int64) {
	t.Helper()
	limits := rcmgr.PartialLimitConfig{PeerDefault: rcmgr.ResourceLimits{Memory: rcmgr.LimitVal64(memory)}}.Build(rcmgr.InfiniteLimits)
	rm, err := rcmgr.NewResourceManager(rcmgr.NewFixedLimiter(limits), rcmgr.WithMetricsDisabled())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rm.Close() })
	c, err := rm.OpenConnection(network.DirInbound, false, ma.StringCast("/ip4/5.5.5.5/tcp/1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetPeer(peer.ID("member")); err != nil {
		t.Fatal(err)
	}
	return c.PeerScope(), func() int64 { return c.PeerScope().Stat().Memory }
}

// ends are two ends of a session over TCP; the second one may hold memory as its scope allows.
func ends(t *testing.T, scope network.PeerScope) (network.MuxedConn, *Conn) {
	t.Helper()
	near, far := tcptest.Pair(t)
	from, err := New(config()).NewConn(near, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	to, err := New(config()).NewConn(far, true, scope)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { from.Close(); to.Close() })
	c, ok := to.(*Conn)
	if !ok {
		t.Fatalf("a %T", to)
	}
	return from, c
}

// fill opens a stream and writes n bytes to it, which nobody reads; the stream at the other end.
func fill(t *testing.T, from network.MuxedConn, to *Conn, n int) (network.MuxedStream, chan error) {
	t.Helper()
	s := openStream(t, from)
	sent := make(chan error, 1)
	go func() {
		_, err := s.Write(make([]byte, n))
		sent <- err
	}()
	at, err := to.AcceptStream()
	if err != nil {
		t.Fatal(err)
	}
	return at, sent
}

func (h *held) counted() (total, reserved int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.total, h.reserved
}

// What nobody reads is counted, and given back once it is read or its stream is gone.
func TestHeld(t *testing.T) {
	scope, taken := scopeOf(t, 64<<20)
	from, to := ends(t, scope)
	a, sentA := fill(t, from, to, 5<<20)
	b, sentB := fill(t, from, to, 3<<20)
	if err := errors.Join(<-sentA, <-sentB); err != nil {
		t.Fatal(err)
	}
	fair.Eventually(t, patience, "8 MiB are counted", func() error {
		if total, reserved := to.held.counted(); total != 8<<20 || reserved < total || taken() != int64(reserved) {
			return errors.New("not yet")
		}
		return nil
	})
	if _, err := io.ReadFull(a, make([]byte, 5<<20)); err != nil {
		t.Fatal(err)
	}
	if total, reserved := to.held.counted(); total != 3<<20 || reserved > total+5*heldStep {
		t.Errorf("%d bytes are counted and %d reserved after 5 MiB were read", total, reserved)
	}
	if err := b.Reset(); err != nil {
		t.Fatal(err)
	}
	if total, _ := to.held.counted(); total != 0 {
		t.Errorf("%d bytes are counted for nothing", total)
	}
	to.Close()
	if n := taken(); n != 0 {
		t.Errorf("%d bytes are reserved after the end", n)
	}
}

// A peer that fills windows loses the stream that holds most, and others continue. The control is TestHeld: the same within
// the limit.
func TestHeldTooMuch(t *testing.T) {
	scope, taken := scopeOf(t, 8<<20)
	from, to := ends(t, scope)
	small, sentSmall := fill(t, from, to, 100<<10)
	mid, sentMid := fill(t, from, to, 1<<20)
	if err := errors.Join(<-sentSmall, <-sentMid); err != nil {
		t.Fatal(err)
	}
	sender := openStream(t, from)
	if _, err := sender.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	big, err := to.AcceptStream() // what nobody has accepted cannot be reset
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() {
		_, err := sender.Write(make([]byte, 15<<20)) // less than its window
		sent <- err
	}()
	<-sent // an error, unless the sockets took all before the reset came
	fair.Eventually(t, patience, "the sender is told", func() error {
		if _, err := sender.Write([]byte{0}); err == nil {
			return errors.New("15 MiB wait unread where a peer may have 8")
		}
		return nil
	})
	fair.Eventually(t, patience, "the stream is reset", func() error {
		_, err := big.Read(make([]byte, 1))
		if err == nil {
			return errors.New("it is there")
		}
		return nil
	})
	if n := taken(); n == 0 || n > 8<<20 {
		t.Errorf("%d bytes are reserved while its owner has the stream", n)
	}
	if err := big.Reset(); err != nil {
		t.Fatal(err)
	}
	for s, n := range map[network.MuxedStream]int{small: 100 << 10, mid: 1 << 20} {
		if _, err := io.ReadFull(s, make([]byte, n)); err != nil {
			t.Errorf("a stream of %d bytes: %v", n, err)
		}
	}
	if total, _ := to.held.counted(); total != 0 {
		t.Errorf("%d bytes are counted in the end", total)
	}
}

// Streams that are never accepted, and what arrives for them, do not add up.
func TestHeldRefused(t *testing.T) {
	h, err := newHeld(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for id := uint32(1); id < 20*backlog; id += 2 {
		h.parse(message(typeData, flagSYN, id, 5))
	}
	if len(h.streams) != backlog || len(h.early) != backlog {
		t.Errorf("%d streams, %d of them early, want %d", len(h.streams), len(h.early), backlog)
	}
	last := uint32(2*backlog - 1)
	h.own(last, func() {}, true)
	if total, _ := h.counted(); len(h.streams) != 1 || len(h.early) != 0 || total != 5 {
		t.Errorf("%d streams, %d of them early, hold %d bytes, want the one that was accepted, with 5", len(h.streams), len(h.early), total)
	}
	h.own(last+1000, func() {}, true) // of those that were too many to note
	h.left(last)
	h.left(last + 1000)
	if total, _ := h.counted(); total != 0 || len(h.streams) != 0 {
		t.Errorf("%d bytes of %d streams are left", total, len(h.streams))
	}
}

// message is one message with n bytes of data.
func message(kind byte, flags uint16, id uint32, n int) []byte {
	b := make([]byte, headerLen, headerLen+n)
	b[1] = kind
	binary.BigEndian.PutUint16(b[2:], flags)
	binary.BigEndian.PutUint32(b[4:], id)
	binary.BigEndian.PutUint32(b[8:], uint32(n)) //nolint:gosec // of a test
	return b[:headerLen+n]
}

// Wherever reads end, the same is counted.
func FuzzHeld(f *testing.F) {
	f.Add(append(message(typeData, flagSYN, 1, 3), message(typeWindow, 0, 1, 0)...), byte(5))
	f.Add(append(message(2, flagSYN, 0, 0), message(typeData, flagSYN, 2, 100)...), byte(1))
	f.Fuzz(func(t *testing.T, b []byte, step byte) {
		whole, _ := newHeld(nil, nil)
		parts, _ := newHeld(nil, nil)
		whole.parse(b)
		for rest := b; len(rest) > 0; {
			n := min(len(rest), int(step)+1)
			parts.parse(rest[:n])
			rest = rest[n:]
		}
		if whole.total != parts.total || whole.have != parts.have || whole.body != parts.body || len(whole.streams) != len(parts.streams) {
			t.Errorf("%d bytes in one, %d in parts", whole.total, parts.total)
		}
		for id := range whole.streams {
			whole.left(id)
		}
		if whole.total != 0 {
			t.Errorf("%d bytes are left", whole.total)
		}
	})
}
