package diagnose

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/findings"
	"edgemesh/internal/keytest"
	"edgemesh/tunnel/p2p/who/refusals"
)

// doctor says that a stranger knocks, that the handshakes' places are taken, that a member's key does not match its entry,
// and that a member takes too much; it warns, since nothing is broken by a refusal.
func TestRefusedFindings(t *testing.T) {
	_, member := keytest.New(t)
	_, stranger := keytest.New(t)
	name := func(p peer.ID) string {
		if p == member {
			return "edge-1"
		}
		return ""
	}
	at := func(a netip.Addr) string {
		if a == netip.MustParseAddr("5.5.5.2") {
			return "edge-2"
		}
		return ""
	}
	for _, c := range []struct {
		reason string
		peer   peer.ID
		from   string
		check  string
		says   []string
	}{
		{refusals.Stranger, stranger, "/ip4/5.5.5.1/tcp/77", "stranger", []string{stranger.String(), "5.5.5.1", "not a member"}},
		{refusals.Stranger, stranger, "/ip4/5.5.5.2/udp/77/quic-v1", "key-mismatch", []string{stranger.String(), "edge-2"}},
		{refusals.Banned, stranger, "/ip4/5.5.5.1/tcp/77", "banned", []string{stranger.String(), "5.5.5.1"}},
		{refusals.Key, member, "/ip4/5.5.5.3/tcp/4001, where another one answers", "key-mismatch", []string{"edge-1", member.String(), "5.5.5.3"}},
		{refusals.Handshakes, "", "5.5.5.4", "handshakes", []string{"all places", "5.5.5.4", "7"}},
		{refusals.Address, "", "5.5.5.4", "handshakes", []string{"share", "5.5.5.4"}},
		{refusals.PeerStreams, member, "", "limits", []string{"edge-1", "peer streams"}},
		{refusals.Memory, member, "/ip4/5.5.5.3/tcp/4001", "limits", []string{"edge-1", "memory", "5.5.5.3"}},
	} {
		got := Refused([]refusals.Refusal{{Reason: c.reason, Peer: c.peer, From: c.from, At: time.Now(), Count: 7}}, name, at)
		if len(got) != 1 || got[0].ID != c.check || got[0].Severity != findings.Warning || got[0].Remedy == "" {
			t.Errorf("%s: %+v", c.reason, got)
			continue
		}
		for _, want := range c.says {
			if !strings.Contains(got[0].Text, want) {
				t.Errorf("%s: %q lacks %q", c.reason, got[0].Text, want)
			}
		}
	}
	if got := Refused(nil, name, at); len(got) != 1 || got[0].Severity != findings.OK {
		t.Errorf("nobody was refused: %+v", got)
	}
}
