package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
)

const (
	// noticeAfter is how long something has to be wrong before it is an event, brokenAfter if it is broken: what passes by itself
	// is not worth one.
	noticeAfter = 10 * time.Minute
	brokenAfter = 2 * time.Minute
	// noticeEvery is the least time between two events of one kind; of relayed paths, which work, relayedEvery.
	noticeEvery  = time.Hour
	relayedEvery = 24 * time.Hour
	// relayedLong is how long a path is relayed before that is worth an event: until then it may still get better.
	relayedLong = time.Hour
	// noticeMost is how many findings one event names.
	noticeMost = 3
)

// nodeBroken is the reason of events about what is broken and has no reason of its own.
const nodeBroken = "MeshNodeBroken"

// Notice is an event for Kubernetes.
type Notice struct{ Reason, Message string }

// Notices decides which findings become events, and how often. The zero value has seen nothing.
type Notices struct {
	since map[string]time.Time // by reason: wrong since then
	sent  map[string]time.Time // by reason: the last event
}

// Due returns the events that are due at now, when all are the findings.
func (n *Notices) Due(now time.Time, all []findings.Finding) (out []Notice) {
	if n.since == nil {
		n.since, n.sent = map[string]time.Time{}, map[string]time.Time{}
	}
	texts, broken := map[string][]string{}, map[string]bool{}
	var order []string
	for _, f := range all {
		kind, _ := findings.Of(f.ID)
		if f.Severity == findings.Broken {
			kind.Event, broken[cmp.Or(kind.Event, nodeBroken)] = cmp.Or(kind.Event, nodeBroken), true
		}
		if f.Severity == findings.OK || f.Severity == findings.Skipped || kind.Event == "" {
			continue
		}
		if texts[kind.Event] == nil {
			order = append(order, kind.Event)
		}
		texts[kind.Event] = append(texts[kind.Event], f.Text+"; "+f.Remedy)
	}
	for reason := range n.since {
		if texts[reason] == nil {
			delete(n.since, reason)
		}
	}
	for _, reason := range order {
		if _, wrong := n.since[reason]; !wrong {
			n.since[reason] = now
		}
		last, sent := n.sent[reason]
		after, every := noticeAfter, noticeEvery
		if broken[reason] {
			after = brokenAfter
		}
		if reason == "MeshPathRelayed" {
			every = relayedEvery
		}
		if now.Sub(n.since[reason]) < after || sent && now.Sub(last) < every {
			continue
		}
		n.sent[reason] = now
		named := slices.Clone(texts[reason][:min(noticeMost, len(texts[reason]))])
		if more := len(texts[reason]) - len(named); more > 0 {
			named = append(named, fmt.Sprintf("and %d more", more))
		}
		out = append(out, Notice{reason, strings.Join(named, ". ")})
	}
	return out
}

// Relayed judges paths that have been relayed for long, by necessity: they work, slower and at the relay's expense.
func Relayed(now time.Time, peers []control.PeerStatus) (out []findings.Finding) {
	for _, p := range peers {
		if p.Path == "relayed" && p.Since != nil && now.Sub(*p.Since) >= relayedLong {
			why, _, _ := strings.Cut(p.Reason, "; ") // by the two NATs; what was tried stands in status NODE
			f := findings.Notef("relayed", "packets to %s have been relayed for an hour or more: %s", p.Node, why).About(p.Node)
			f.Remedy, f.Since = "`edgemesh-agent netcheck` on both nodes says what blocks a better path", p.Since
			out = append(out, f)
		}
	}
	return out
}
