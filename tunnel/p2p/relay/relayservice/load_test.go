package relayservice

import (
	"fmt"
	"io"
	"math"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/host"

	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/who/identity"
)

// load asks the relay.
func (c *circuits) load(by host.Host) (string, error) {
	st, err := by.NewStream(c.t.Context(), c.relay.ID, identity.LoadProtocol)
	if err != nil {
		return "", err
	}
	defer func() { _ = st.Reset() }()
	_ = st.SetDeadline(time.Now().Add(testTime))
	_ = st.CloseWrite()
	b, err := io.ReadAll(st)
	return string(b), err
}

// A member is told how much of the relay is in use: here of its bandwidth.
func TestLoad(t *testing.T) {
	c := newCircuits(t, time.Hour, identity.Limits{})
	if got, err := c.load(c.from); err != nil || got != "unknown\n" {
		t.Errorf("%q, %v of a relay that does not know its bandwidth", got, err)
	}
	for _, x := range []struct {
		share int64
		want  string
	}{{2, "unknown\n"}, {1, "unknown\ncrowded\n"}, {0, "unknown\n"}} { // there is one reservation
		c.share.Store(x.share)
		if got, err := c.load(c.from); err != nil || got != x.want {
			t.Errorf("%q, %v of a relay with a share of %d, want %q", got, err, x.share, x.want)
		}
	}
	s := c.service.traffic.shares
	s.bandwidth = 1e6
	if got, err := c.load(c.from); err != nil || got != "0\n" {
		t.Errorf("%q, %v of an idle relay", got, err)
	}
	m := s.join(c.from.ID())
	const ticks = int(10 * loadTime / shareTick) // what was before is forgotten then
	for _, percent := range []int{1, 69, 70, 75, 100} {
		for i := range ticks {
			d := shareTick * time.Duration(1+i%3) // a busy host is late
			m.sent(int(1e6*d/time.Second) * percent / 100)
			s.tick(d)
		}
		if got := 100 * s.inUse(); math.Abs(got-float64(percent)) > 0.01 {
			t.Errorf("%.2f %% of the bandwidth is in use, want %d", got, percent)
		}
		if got, err := c.load(c.from); err != nil || got != fmt.Sprintf("%d\n", percent) {
			t.Errorf("%q, %v of a relay with %d %% of its bandwidth in use", got, err, percent)
		}
	}
	s.tick(0)
	for range ticks {
		s.tick(shareTick)
	}
	if got := s.inUse(); got > 0.001 || math.IsNaN(got) {
		t.Errorf("%.4f in use, long after the last byte", got)
	}
}

// A process that computes is seen to.
func TestCPUShare(t *testing.T) {
	var c cpu
	c.look(time.Now())
	if c.share() != 0 {
		t.Error("a share of no time")
	}
	spin := 0
	fair.Eventually(t, testTime, "the share is seen", func() error {
		for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); spin++ {
		}
		c.look(time.Now())
		return fair.True(func() bool { return c.share() > 0 })()
	})
}
