package relays

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/keytest"
)

func newID(t testing.TB) peer.ID {
	t.Helper()
	_, id := keytest.New(t)
	return id
}

// What a peer reports makes this node dial nothing, and cannot grow.
func TestParseReport(t *testing.T) {
	one, two := newID(t), newID(t)
	known := func(p peer.ID) bool { return p == one }
	line := func(id peer.ID, ms float64) entry { return entry{ID: id.String(), Ms: ms, Held: true} }
	b, err := json.Marshal(message{Relays: []entry{line(one, 12.5), line(two, 1), {ID: "rubbish"}}})
	if err != nil {
		t.Fatal(err)
	}
	got, ok := parseReport(b, known)
	if !ok || len(got.held) != 1 || !got.held[one] || got.rtt[one] != 12500*time.Microsecond {
		t.Errorf("%+v, %t", got, ok)
	}
	for _, ms := range []float64{-1, 0, 1e300} {
		b, _ := json.Marshal(message{Relays: []entry{line(one, ms)}})
		if got, ok := parseReport(b, known); !ok || got.rtt[one] != 0 {
			t.Errorf("distance %v: %+v, %t", ms, got, ok)
		}
	}
	many, _ := json.Marshal(message{Relays: slices.Repeat([]entry{line(one, 1)}, maxReported+1)})
	for _, bad := range []string{"", "[]", `{"relays":`, strings.Repeat("x", 100), string(many)} {
		if _, ok := parseReport([]byte(bad), known); ok {
			t.Errorf("%.40q is taken", bad)
		}
	}
}

func FuzzParseReport(f *testing.F) {
	f.Add([]byte(`{"relays":[{"id":"12D3KooWCHicWtBzdrK1QoJGgR8RJTkn5HYdQghawBrdfZ4D8mSf","ms":1.5,"held":true}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, ok := parseReport(b, func(peer.ID) bool { return true })
		if !ok {
			return
		}
		if len(got.held) > maxReported {
			t.Errorf("%d relays", len(got.held))
		}
		for _, d := range got.rtt {
			if d < 0 || d > maxReportedRTT {
				t.Errorf("distance %v", d)
			}
		}
	})
}

func FuzzParseSeen(f *testing.F) {
	f.Add([]byte("/ip4/5.5.1.1/tcp/4001\n/ip4/5.5.1.1/udp/4001/quic-v1\n"))
	f.Add([]byte("/ip4/5.5.1.1/tcp/443/tls/sni/x/ws\n\n/ip6/::1/tcp/0\nx"))
	f.Fuzz(func(t *testing.T, b []byte) {
		seen, err := parseSeen(bytes.NewReader(b))
		if err == nil && len(seen) > maxSeen {
			t.Errorf("%d addresses", len(seen))
		}
		for _, e := range seen {
			if !e.Valid() {
				t.Errorf("%v is no address", e)
			}
		}
	})
}
