package relayservice

import (
	"io"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/host"

	"edgemesh/tunnel/p2p/who/identity"
)

// queryLoad sends the relay a query by LoadProtocol and returns the answer.
func (c *circuits) queryLoad(by host.Host) (string, error) {
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

// A relay says that it is crowded from its share of reservations on. The line before is what peers of former versions read.
func TestCrowded(t *testing.T) {
	c := newCircuits(t, time.Hour, identity.Limits{})
	for _, x := range []struct {
		share int64
		want  string
	}{{2, "unknown\n"}, {1, "unknown\ncrowded\n"}, {0, "unknown\n"}} { // there is one reservation
		c.share.Store(x.share)
		if got, err := c.queryLoad(c.from); err != nil || got != x.want {
			t.Errorf("%q, %v of a relay with a share of %d, want %q", got, err, x.share, x.want)
		}
	}
}
