package view

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"edgemesh/agent/control"
	"edgemesh/internal/cause"
	"edgemesh/internal/wording"
)

// DirectOrBetter reports whether a path leads to the peer without a relay: direct, punched, or past the tunnel.
func DirectOrBetter(path string) bool {
	return slices.Contains([]string{"punched", "direct", "vxlan", "native", "local"}, path)
}

// Probe prints one outcome.
func Probe(w io.Writer, on Screen, target string, p control.PingResult) {
	if p.RTTMs == nil {
		on.Line(w, red, fmt.Sprintf("%s: seq %d  ", clean(target), p.Seq), "lost: "+lost(p))
		return
	}
	on.Line(w, pathColours[p.Path], fmt.Sprintf("%s: seq %d  %.2f ms  ", clean(target), p.Seq, *p.RTTMs), pathText(p.Path, p.Transport, p.Relay))
}

// lost is why a probe was lost.
func lost(p control.PingResult) string {
	return cmp.Or(p.Cause.String(), cause.NoAnswer.String())
}

// sumPath is the path in the last line.
func sumPath(r control.PingReply) string {
	if r.Path == "" {
		return "path unknown"
	}
	return "path " + pathText(r.Path, r.Transport, r.Relay)
}

// pathText is "relayed over relay/tcp via …abcd".
func pathText(path, transport, relay string) string {
	out := cmp.Or(clean(path), "path unknown")
	if transport != "" {
		out += " over " + clean(transport)
	}
	if relay != "" {
		out += " via " + wording.ShortID(clean(relay))
	}
	return out
}

// Pinged prints the sum, and why the path is not a better one.
func Pinged(w io.Writer, on Screen, r control.PingReply) {
	sum := fmt.Sprintf("%d sent, %d received, %s", r.Sent, r.Received, sumPath(r))
	if r.PodIP != "" && r.Node != "" {
		sum = fmt.Sprintf("pod %s is on node %s: %s", r.PodIP, r.Node, sum)
	}
	if r.Received > 0 && r.MinMs != nil && r.AvgMs != nil && r.MaxMs != nil {
		sum += fmt.Sprintf(", min/avg/max %.2f/%.2f/%.2f ms", *r.MinMs, *r.AvgMs, *r.MaxMs)
	}
	on.Line(w, plain, "", sum)
	if r.Reason != "" {
		on.Line(w, plain, "", "not a better path: "+r.Reason)
	}
	if r.Timeline != nil {
		timeline(w, on, r.Node, *r.Timeline)
	}
}

// timeline prints how long each step of a first contact waited for the one before.
func timeline(w io.Writer, on Screen, node string, t control.Timeline) {
	if t.Ago == "" {
		on.Line(w, plain, "", "first contact: there was none since the agent started")
		return
	}
	on.Line(w, plain, "", fmt.Sprintf("first contact, %s ago:", t.Ago))
	for _, end := range []struct {
		name  string
		steps []control.Step
	}{{"here", t.Here}, {clean(node), t.There}} {
		last := 0.
		for _, s := range end.steps {
			on.Line(w, plain, "", fmt.Sprintf("  %-12s %9.1f ms  %+8.1f  %s", end.name, s.Ms, s.Ms-last, clean(s.Step)))
			last = s.Ms
		}
	}
	if t.Error != "" {
		on.Line(w, plain, "", fmt.Sprintf("  %s's side is not known: %s", clean(node), clean(t.Error)))
	}
}
