package view

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"edgemesh/agent/control"
)

// Paths are the groups of peers, in the order in which they are shown: what is in trouble first.
var Paths = []string{"none", "relayed", "punched", "direct", "vxlan", "native", Idle} //nolint:gochecknoglobals // a constant

// Idle is the path of a peer without recent traffic.
const Idle = "idle"

var pathColours = map[string]colour{"none": red, "relayed": yellow, "punched": cyan, "direct": green, "vxlan": green, "native": green, Idle: dim} //nolint:gochecknoglobals // a constant

// Filter selects peers. The zero value selects what an operator has to see: peers in use or in trouble, as many as fit one
// screen.
type Filter struct {
	Path string // "" or one of Paths
	Site string // "" or a site
	All  bool   // also idle peers, however many
}

// Peers are those of all that f's path and site select.
func (f Filter) Peers(all []control.PeerStatus) []control.PeerStatus {
	if f.Path == "" && f.Site == "" {
		return all
	}
	out := []control.PeerStatus{}
	for _, p := range all {
		if (f.Path == "" || p.Path == f.Path) && (f.Site == "" || p.Site == f.Site) {
			out = append(out, p)
		}
	}
	return out
}

// whole reports whether every peer that is selected is shown.
func (f Filter) whole() bool { return f != Filter{} }

// defaultRows is how many peers are shown where the screen's height is unknown; aside is how many lines all else may take.
const (
	defaultRows = 30
	leastRows   = 12
	aside       = 28
)

// peersText counts them by path: "199: 3 native, 1 relayed; 195 idle".
func peersText(all []control.PeerStatus) string {
	groups := byPath(all)
	var parts []string
	for _, path := range slices.Backward(Paths) {
		if n := len(groups[path]); n > 0 && path != Idle {
			parts = append(parts, fmt.Sprintf("%d %s", n, path))
		}
	}
	out := fmt.Sprintf("%d", len(all))
	if len(parts) > 0 {
		out += ": " + strings.Join(parts, ", ")
	}
	if n := len(groups[Idle]); n > 0 {
		out += fmt.Sprintf("; %d idle", n)
	}
	return out
}

func byPath(all []control.PeerStatus) map[string][]control.PeerStatus {
	out := map[string][]control.PeerStatus{}
	for _, p := range all {
		out[p.Path] = append(out[p.Path], p)
	}
	return out
}

// peers prints the selected ones, grouped by path. Within a group those with the most traffic come first.
func peers(w io.Writer, on Screen, all []control.PeerStatus, f Filter, now time.Time) {
	groups := byPath(f.Peers(all))
	if !f.whole() {
		delete(groups, Idle)
	}
	shown := share(groups, f, on.Height)
	var t table
	t.add(bold, "PEER", "PODS", "VIA", "RTT", "SINCE", "TX", "RX", "DROPS", "ENDPOINT", "REASON")
	for _, path := range Paths {
		group := groups[path]
		if len(group) == 0 {
			continue
		}
		slices.SortFunc(group, func(a, b control.PeerStatus) int {
			return cmp.Or(cmp.Compare(traffic(b), traffic(a)), cmp.Compare(a.Node, b.Node))
		})
		t.add(pathColours[path], fmt.Sprintf("%s (%d)", path, len(group)))
		for _, p := range group[:shown[path]] {
			t.add(plain, peerRow(p, now)...)
		}
		if more := len(group) - shown[path]; more > 0 {
			t.add(dim, fmt.Sprintf("  … %d more: --path %s", more, path))
		}
	}
	if len(t.rows) > 1 {
		fmt.Fprintln(w)
		t.print(w, on)
	}
}

// share says how many peers of each group are shown: a few of each, then as many as fit, in the order of Paths.
func share(groups map[string][]control.PeerStatus, f Filter, height int) map[string]int {
	const least = 2
	rows := defaultRows
	if height > 0 {
		rows = max(leastRows, height-aside)
	}
	out := map[string]int{}
	for path, group := range groups {
		if out[path] = len(group); !f.whole() {
			out[path] = min(least, len(group))
			rows -= out[path]
		}
	}
	for _, path := range Paths {
		more := max(0, min(rows, len(groups[path])-out[path]))
		out[path] += more
		rows -= more
	}
	return out
}

func traffic(p control.PeerStatus) uint64 { return p.TxBytes + p.RxBytes + p.LANBytes }

func peerRow(p control.PeerStatus, now time.Time) []string {
	return []string{"  " + p.Node, strings.Join(p.PodCIDRs, ","), cmp.Or(p.Transport, "-"), millis(p.RTTMs), since(p.Since, now),
		bytes(p.TxBytes), bytes(p.RxBytes + p.LANBytes), fmt.Sprint(p.Drops), cmp.Or(p.Endpoint, "-"), cmp.Or(p.Reason, "-")}
}
