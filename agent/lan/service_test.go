package lan

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"

	"edgemesh/agent/mesh"
)

// countingKernel counts how often it is given paths.
type countingKernel struct {
	uplinks []mesh.Uplink
	doubt   bool
	sets    int
}

func (k *countingKernel) SetPaths(context.Context, mesh.Paths) error {
	k.sets++
	k.doubt = false
	return nil
}
func (k *countingKernel) PathsInDoubt() bool                       { return k.doubt }
func (k *countingKernel) Uplinks() ([]mesh.Uplink, error)          { return k.uplinks, nil }
func (k *countingKernel) Traffic() (map[mesh.Accept]uint64, error) { return nil, nil }

// newService is a service whose Run is not called.
func newService(t *testing.T, k Kernel) *Service {
	t.Helper()
	s, err := New(Config{
		Self: "self", Gateways: [2]netip.Addr{netip.MustParseAddr("127.0.0.1")}, Kernel: k,
		Open:      func(context.Context, mesh.PeerID) (Stream, error) { return nil, context.Canceled },
		Connected: func(mesh.PeerID) bool { return true },
		Failing:   func(mesh.PeerID) {}, Mark: func(int) int { return 0 }, VXLANName: "vx", Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

// TestUplinksAsBeforeInDoubt: an uplink was away so shortly that the same addresses are
// found again. The kernel is given its paths again, and only then.
func TestUplinksAsBeforeInDoubt(t *testing.T) {
	k := &countingKernel{uplinks: []mesh.Uplink{{Link: "eth0", Addr: netip.MustParseAddr("192.168.1.2"), Bits: 24, MTU: 1500}}}
	s := newService(t, k)
	s.UplinksChanged()
	before := k.sets
	s.UplinksChanged()
	if k.sets != before {
		t.Errorf("paths were set %d times more though nothing has changed", k.sets-before)
	}
	k.doubt = true
	s.UplinksChanged()
	if k.sets != before+1 {
		t.Errorf("paths in doubt were set %d times, want once", k.sets-before)
	}
}
