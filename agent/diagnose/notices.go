package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"edgemesh/agent/control"
)

const (
	// noticeAfter is how long something has to be wrong before it is an event: what passes by itself is none.
	noticeAfter = 10 * time.Minute
	// noticeEvery is the least time between two events of one kind.
	noticeEvery = time.Hour
	// noticeMost is how many findings one event names.
	noticeMost = 3
)

// reasons are the events, by the check that finds what they are about.
var reasons = map[string]string{"peers": "MeshPathMissing", "keys": "MeshKeyMismatch", "strangers": "MeshStranger", //nolint:gochecknoglobals // a constant
	"handshakes": "MeshHandshakes", "membership": "MeshMembershipOutdated"}

// Notice is an event for Kubernetes.
type Notice struct{ Reason, Message string }

// Notices decides which findings become events, and how often. The zero value has seen nothing.
type Notices struct {
	since map[string]time.Time // by check: wrong since then
	told  map[string]time.Time // by check: the last event
}

// Due returns the events that are due at now, when all are the findings.
func (n *Notices) Due(now time.Time, all []control.Finding) (out []Notice) {
	if n.since == nil {
		n.since, n.told = map[string]time.Time{}, map[string]time.Time{}
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
		last, told := n.told[check]
		if now.Sub(n.since[check]) < noticeAfter || told && now.Sub(last) < noticeEvery {
			continue
		}
		n.told[check] = now
		named := slices.Clone(texts[check][:min(noticeMost, len(texts[check]))])
		if more := len(texts[check]) - len(named); more > 0 {
			named = append(named, fmt.Sprintf("and %d more", more))
		}
		out = append(out, Notice{reasons[check], strings.Join(named, ". ")})
	}
	return out
}
