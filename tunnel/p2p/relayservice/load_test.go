package relayservice

import (
	"io"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/host"

	"edgemesh/test/fair"
	"edgemesh/tunnel/p2p/identity"
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
	if got, err := c.load(c.from); err != nil || got != "0\n" {
		t.Errorf("%q, %v of an idle relay", got, err)
	}
	s := c.service.traffic.shares
	s.bandwidth = 1e6
	m := s.join(c.from.ID())
	for range 10 * loadTicks {
		m.sent(int(1e6 * shareTick / time.Second * 3 / 4))
		s.tick(shareTick)
	}
	if got := s.inUse(); got < 0.7 || got > 0.76 {
		t.Errorf("%.2f of the bandwidth is in use, want 0.75", got)
	}
	if got, err := c.load(c.from); err != nil || got < "70\n" || got > "76\n" {
		t.Errorf("%q, %v of a relay with three quarters of its bandwidth in use", got, err)
	}
	for range 10 * loadTicks {
		s.tick(shareTick)
	}
	if got := s.inUse(); got > 0.06 {
		t.Errorf("%.2f in use, long after the last byte", got)
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
