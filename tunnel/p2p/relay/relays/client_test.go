package relays

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/wake"
)

// A relay that is not there at the first attempt is no warning; at the second it is, and later where the cause changes.
func TestFirstFailure(t *testing.T) {
	var log bytes.Buffer
	c := newClient(&common{ctx: t.Context(), changed: &wake.All{}, choose: wake.NewOne(), Config: Config{
		Log: slog.New(slog.NewTextHandler(&log, nil)), Refusal: func(peer.ID) error { return nil },
	}}, peer.AddrInfo{ID: "r"})
	refused := errors.New("connection refused")
	for i, x := range []struct {
		err   error
		level string
	}{{refused, "INFO"}, {refused, "WARN"}, {refused, ""}, {errors.New("no route"), "WARN"}, {nil, "INFO"}, {refused, "WARN"}} {
		log.Reset()
		c.report(x.err == nil, x.err)
		if s := log.String(); (s == "") != (x.level == "") || !strings.Contains(s, x.level) {
			t.Errorf("attempt %d: %q, want %s", i+1, s, x.level)
		}
	}
}
