package view

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"edgemesh/agent/control"
)

// DirectOrBetter reports whether a path leads to the peer without a relay: direct, punched, or past the tunnel.
func DirectOrBetter(path string) bool {
	return slices.Contains([]string{"punched", "direct", "vxlan", "native", "local"}, path)
}

// Probe prints one outcome.
func Probe(w io.Writer, on Screen, target string, p control.PingResult) {
	if p.RTTMs == nil {
		fmt.Fprintf(w, "%s: seq %d  %s\n", clean(target), p.Seq, on.paint(red, "lost: "+clean(cmp.Or(p.Error, "no answer"))))
		return
	}
	fmt.Fprintf(w, "%s: seq %d  %.2f ms  %s\n", clean(target), p.Seq, *p.RTTMs, on.paint(pathColours[p.Path], pathText(p.Path, p.Transport, p.Relay)))
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
		out += " via " + shortID(clean(relay))
	}
	return out
}

// Pinged prints the sum, and why the path is not a better one.
func Pinged(w io.Writer, r control.PingReply) {
	who := ""
	if r.PodIP != "" && r.Node != "" {
		who = fmt.Sprintf("pod %s is on node %s: ", clean(r.PodIP), clean(r.Node))
	}
	fmt.Fprintf(w, "%s%d sent, %d received, %s", who, r.Sent, r.Received, sumPath(r))
	if r.Received > 0 && r.MinMs != nil && r.AvgMs != nil && r.MaxMs != nil {
		fmt.Fprintf(w, ", min/avg/max %.2f/%.2f/%.2f ms", *r.MinMs, *r.AvgMs, *r.MaxMs)
	}
	fmt.Fprintln(w)
	if r.Reason != "" {
		fmt.Fprintf(w, "not a better path: %s\n", strings.TrimSpace(clean(r.Reason)))
	}
}
