package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"edgemesh/agent/control"
)

const (
	// noticeAfter is how long something has to be wrong before it is an event: what passes by itself is not worth one.
	noticeAfter = 10 * time.Minute
	// noticeEvery is the least time between two events of one kind; of relayed paths, which work, relayedEvery.
	noticeEvery  = time.Hour
	relayedEvery = 24 * time.Hour
	// relayedLong is how long a path is relayed before that is worth an event: until then it may still get better.
	relayedLong = time.Hour
	// noticeMost is how many findings one event names.
	noticeMost = 3
)

// reasons are the events, by the check that finds what they are about.
var reasons = map[string]string{"peers": "MeshPathMissing", "keys": "MeshKeyMismatch", "strangers": "MeshStranger", //nolint:gochecknoglobals // a constant
	"handshakes": "MeshHandshakes", "relayed": "MeshPathRelayed", "membership": "MeshMembershipOutdated", "pool": "MeshPoolExhausted"}

// Notice is an event for Kubernetes.
type Notice struct{ Reason, Message string }

// Notices decides which findings become events, and how often. The zero value has seen nothing.
type Notices struct {
	since map[string]time.Time // by check: wrong since then
	sent  map[string]time.Time // by check: the last event
}

// Due returns the events that are due at now, when all are the findings.
func (n *Notices) Due(now time.Time, all []control.Finding) (out []Notice) {
	if n.since == nil {
		n.since, n.sent = map[string]time.Time{}, map[string]time.Time{}
	}
	texts := map[string][]string{}
	var order []string
	for _, f := range all {
		if f.Severity == control.OK || reasons[f.Check] == "" {
			continue
		}
		if texts[f.Check] == nil {
			order = append(order, f.Check)
		}
		texts[f.Check] = append(texts[f.Check], f.Detail+"; "+f.Remedy)
	}
	for check := range n.since {
		if texts[check] == nil {
			delete(n.since, check)
		}
	}
	for _, check := range order {
		if _, wrong := n.since[check]; !wrong {
			n.since[check] = now
		}
		last, sent := n.sent[check]
		every := noticeEvery
		if check == "relayed" {
			every = relayedEvery
		}
		if now.Sub(n.since[check]) < noticeAfter || sent && now.Sub(last) < every {
			continue
		}
		n.sent[check] = now
		named := slices.Clone(texts[check][:min(noticeMost, len(texts[check]))])
		if more := len(texts[check]) - len(named); more > 0 {
			named = append(named, fmt.Sprintf("and %d more", more))
		}
		out = append(out, Notice{reasons[check], strings.Join(named, ". ")})
	}
	return out
}

// Relayed judges paths that have been relayed for long, by necessity: they work, slower and at the relay's expense.
func Relayed(now time.Time, peers []control.PeerStatus) (out []control.Finding) {
	for _, p := range peers {
		if p.Path == "relayed" && p.Since != nil && now.Sub(*p.Since) >= relayedLong {
			out = append(out, control.Warningf("relayed", "`edgemesh-agent netcheck` on both nodes says what blocks a better path",
				"packets to %s have been relayed for %v: %s", p.Node, now.Sub(*p.Since).Round(time.Minute), p.Reason))
		}
	}
	return out
}
