package lan

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"edgemesh/agent/mesh"
)

// halves is a stream whose writing half can be closed, made of two pipes.
type halves struct{ in, out net.Conn }

func newStream() (a, b *halves) {
	r1, w1 := net.Pipe()
	r2, w2 := net.Pipe()
	return &halves{r1, w2}, &halves{r2, w1}
}

func (h *halves) Read(b []byte) (int, error)         { return h.in.Read(b) }
func (h *halves) Write(b []byte) (int, error)        { return h.out.Write(b) }
func (h *halves) SetReadDeadline(t time.Time) error  { return h.in.SetReadDeadline(t) }
func (h *halves) SetWriteDeadline(t time.Time) error { return h.out.SetWriteDeadline(t) }
func (h *halves) CloseWrite() error                  { return h.out.Close() }
func (h *halves) Reset()                             { _, _ = h.in.Close(), h.out.Close() }

// breaksAt is a stream that is lost with the write of a number.
type breaksAt struct {
	*halves
	writes int
}

func (s *breaksAt) Write(b []byte) (int, error) {
	if s.writes--; s.writes == 0 {
		s.Reset()
	}
	return s.halves.Write(b)
}

type noKernel struct{}

func (noKernel) SetPaths(context.Context, mesh.Paths) error { return nil }
func (noKernel) PathsInDoubt() bool                         { return false }
func (noKernel) Uplinks() ([]mesh.Uplink, error)            { return nil, nil }
func (noKernel) Traffic() (map[mesh.Inlet]uint64, error)    { return nil, nil }

// TestExchangeWithoutConfirmation: the connection is lost between the opener's taking
// the peer's offer and its confirmation. Both have the same session soon after: until
// then the peer would hold on to what it heard before.
func TestExchangeWithoutConfirmation(t *testing.T) {
	var a, b *Service
	var opened atomic.Int32
	plan := mesh.Plan{Members: []mesh.Node{{Name: "a", PeerID: "A"}, {Name: "b", PeerID: "B"}}}
	start := func(self mesh.PeerID, open func(context.Context, mesh.PeerID) (Stream, error)) *Service {
		s, err := New(Config{
			Self: self, Gateways: [2]netip.Addr{netip.MustParseAddr("127.0.0.1")}, Kernel: noKernel{}, Open: open, Connected: func(mesh.PeerID) bool { return true },
			Failing: func(mesh.PeerID) {}, Mark: func(int) int { return 0 }, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	b = start("B", func(context.Context, mesh.PeerID) (Stream, error) { return nil, errors.New("only a opens") })
	a = start("A", func(context.Context, mesh.PeerID) (Stream, error) {
		mine, theirs := newStream()
		go func() { _ = b.Answer("A", theirs) }()
		if opened.Add(1) == 1 {
			return &breaksAt{mine, 2}, nil
		}
		return mine, nil
	})
	for _, s := range []*Service{a, b} {
		s.SetPlan(plan, "", "lan.vxlan is false")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		t.Cleanup(func() { cancel(); <-done })
	}
	a.Used("B")
	b.Used("A")
	session := func(s *Service, id mesh.PeerID) uint64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		if p := s.peers[id]; p != nil && p.sess != nil {
			return p.sess.id
		}
		return 0
	}
	for end := time.Now().Add(offerMin * 2 / 3); ; time.Sleep(10 * time.Millisecond) {
		if at, bt := session(a, "B"), session(b, "A"); at == bt && at != 0 && opened.Load() > 1 {
			return
		} else if time.Now().After(end) {
			t.Fatalf("sessions %d and %d after %d exchanges", at, bt, opened.Load())
		}
	}
}
