package diagnose

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
)

// What stays wrong is an event after ten minutes, what stays broken after two, and every hour, with a few of its findings; what passes, and what is not for
// the cluster, is none.
func TestNotices(t *testing.T) {
	var n Notices
	start := time.Unix(1, 0)
	stranger := findings.Warningf("stranger", "block it", "peer x connects")
	var lost []findings.Finding
	for i := range 5 {
		lost = append(lost, findings.Warningf("peer-unreachable", "run doctor there", "no path to edge-%d", i))
	}
	for _, c := range []struct {
		minute int
		all    []findings.Finding
		want   string
	}{
		{0, append([]findings.Finding{stranger, findings.Okayf("key", "fine"), findings.Warningf("udp", "open it", "closed")}, lost...), ""},
		{9, lost, ""}, // the stranger is gone
		{10, append([]findings.Finding{stranger}, lost...), "MeshPathMissing: no path to edge-0; run doctor there. no path to edge-1; run doctor there. " +
			"no path to edge-2; run doctor there. and 2 more"},
		{20, []findings.Finding{stranger}, "MeshStranger: peer x connects; block it"},
		{21, append([]findings.Finding{stranger}, lost...), ""},
		{69, append([]findings.Finding{stranger}, lost...), ""}, // lost again, but reported within the hour
		{70, append([]findings.Finding{stranger}, lost[0]), "MeshPathMissing: no path to edge-0; run doctor there"},
		{80, []findings.Finding{stranger}, "MeshStranger: peer x connects; block it"},
		{300, nil, ""},
		{303, []findings.Finding{findings.Brokenf("tun", "start it", "down")}, ""}, // may pass by itself
		{304, nil, ""},
		{305, []findings.Finding{findings.Brokenf("tun", "start it", "down")}, ""},
		{307, []findings.Finding{findings.Brokenf("tun", "start it", "down")}, "MeshNodeBroken: down; start it"},
		{309, nil, ""},
		{310, Pools([]control.Pool{{Blocks: []string{"10.1.1.0/24"}, Size: 9, Used: 8}}), ""},
		{320, Pools([]control.Pool{{Blocks: []string{"10.1.1.0/24"}, Size: 9, Used: 9}}), ""},
		{322, Pools([]control.Pool{{Blocks: []string{"10.1.1.0/24"}, Size: 9, Used: 9}}), "MeshPoolExhausted: pods use every address of 10.1.1.0/24 (9)"},
	} {
		var said []string
		for _, x := range n.Due(start.Add(time.Duration(c.minute)*time.Minute), c.all) {
			said = append(said, fmt.Sprintf("%s: %s", x.Reason, x.Message))
		}
		if got := strings.Join(said, "\n"); got != c.want && (c.minute != 322 || !strings.HasPrefix(got, c.want)) {
			t.Errorf("minute %d: %q, want %q", c.minute, got, c.want)
		}
	}
}

// A path that has been relayed for an hour is an event, once a day; other paths are none.
func TestRelayed(t *testing.T) {
	start := time.Unix(1, 0)
	peers := []control.PeerStatus{{Node: "a", Path: "relayed", Since: &start, Reason: "both NATs are random"}, {Node: "b", Path: "punched", Since: &start}, {Node: "c", Path: "relayed"}}
	var n Notices
	sent := 0
	for minute := range 60 * 50 {
		now := start.Add(time.Duration(minute) * time.Minute)
		for _, x := range n.Due(now, Relayed(now, peers)) {
			sent++
			if x.Reason != "MeshPathRelayed" || !strings.Contains(x.Message, "packets to a have been relayed for") || !strings.Contains(x.Message, "both NATs are random") {
				t.Errorf("%+v", x)
			}
		}
	}
	if sent != 3 { // after 70 minutes, and 24 and 48 hours later
		t.Errorf("sent %d times in 50 hours", sent)
	}
}
