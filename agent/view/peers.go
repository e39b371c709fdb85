package view

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"edgemesh/agent/control"
	"edgemesh/internal/cause"
	"edgemesh/internal/wording"
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
	None bool   // no peers: the node itself
}

// Peers are those of all that f's path and site select.
func (f Filter) Peers(all []control.PeerStatus) []control.PeerStatus {
	if f.None {
		return nil
	}
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

// text is what f selects.
func (f Filter) text() string {
	var parts []string
	if f.Path != "" {
		parts = append(parts, "on path "+f.Path)
	}
	if f.Site != "" {
		parts = append(parts, "at site "+f.Site)
	}
	return strings.Join(parts, " ")
}

// whole reports whether every peer that is selected is shown.
func (f Filter) whole() bool { return f != Filter{} }

// peersText counts them by path: "199: 3 native, 1 relayed; 195 idle".
func peersText(s control.Status) string {
	groups := byPath(s.Peers)
	out := fmt.Sprintf("%d", len(s.Peers)+s.Idle)
	if parts := inUse(groups); len(parts) > 0 {
		out += ": " + strings.Join(parts, ", ")
	}
	if n := len(groups[Idle]) + s.Idle; n > 0 {
		out += fmt.Sprintf("; %d idle", n)
	}
	return out
}

// inUse counts peers by path, the best path first, without idle ones: "3 native", "1 relayed".
func inUse(groups map[string][]control.PeerStatus) (out []string) {
	for _, path := range slices.Backward(inOrder(groups)) {
		if n := len(groups[path]); n > 0 && path != Idle {
			out = append(out, fmt.Sprintf("%d %s", n, clean(path)))
		}
	}
	return out
}

// inOrder are the paths of groups in the order of Paths. What a newer agent says, and this release does not know, comes first.
func inOrder(groups map[string][]control.PeerStatus) []string {
	var unknown []string
	for path := range groups {
		if !slices.Contains(Paths, path) {
			unknown = append(unknown, path)
		}
	}
	slices.Sort(unknown)
	return append(unknown, Paths...)
}

func byPath(all []control.PeerStatus) map[string][]control.PeerStatus {
	out := map[string][]control.PeerStatus{}
	for _, p := range all {
		out[p.Path] = append(out[p.Path], p)
	}
	return out
}

// listed is the selected peers as they are printed.
type listed struct {
	groups map[string][]control.PeerStatus // by path; those with the most traffic first
	f      Filter
	on     Screen
	now    time.Time
	full   bool // the rows have all columns; else the reason stands below its peer
}

func newListed(on Screen, all []control.PeerStatus, f Filter, now time.Time) listed {
	l := listed{byPath(f.Peers(all)), f, on, now, on.Width == 0}
	if !f.whole() {
		delete(l.groups, Idle)
	}
	var t table
	t.Add(bold, fullHead...)
	for _, group := range l.groups {
		slices.SortFunc(group, func(a, b control.PeerStatus) int {
			return cmp.Or(cmp.Compare(traffic(b), traffic(a)), cmp.Compare(a.Node, b.Node))
		})
		if !l.full {
			for _, p := range group {
				t.Add(plain, fullRow(p, now)...)
			}
		}
	}
	l.full = l.full || t.Width() <= on.Width
	return l
}

// least is how many lines say what an operator has to see: each group, and a peer or two with their reasons.
func (l listed) least() int {
	if len(l.groups) == 0 {
		return 0
	}
	return listHead + len(l.groups) + 1 + reasonLines
}

const (
	listHead    = 2 // a blank line and the columns' names
	reasonLines = 2 // at most, where not all peers are shown; `status NODE` has the whole reason
)

// print shows each group, and as many of its peers as fit rows lines.
func (l listed) print(w io.Writer, rows int) {
	t := table{Spare: []string{"QUEUE", "RATE", "RX", "TX", "SINCE"}}
	if l.full {
		t.Add(bold, fullHead...)
	} else {
		t.Add(bold, shortHead...)
	}
	shown := l.share(rows - listHead)
	for _, path := range inOrder(l.groups) {
		group := l.groups[path]
		n, ok := shown[path]
		if !ok {
			continue
		}
		heading := fmt.Sprintf("%s (%d)", clean(path), len(group))
		switch more := len(group) - n; {
		case more > 0 && slices.Contains(Paths, path):
			heading += fmt.Sprintf(", %d more: --path %s", more, path)
		case more > 0:
			heading += fmt.Sprintf(", %d more: --all", more)
		}
		t.Add(pathColours[path], heading)
		for _, p := range group[:n] {
			if l.full {
				t.Add(plain, fullRow(p, l.now)...)
				continue
			}
			t.Add(plain, shortRow(p, l.now)...)
			for _, line := range l.reason(p) {
				t.Add(dim, line)
			}
		}
	}
	if t.Len() > 1 {
		fmt.Fprintln(w)
		t.Print(w, l.on)
	}
}

// share says how many peers of each group are shown in so many lines: one of each, then a second, then as many as fit, in
// the order of Paths. A group that is not in it has no place for its heading.
func (l listed) share(rows int) map[string]int {
	out := map[string]int{}
	for _, path := range inOrder(l.groups) {
		if n := len(l.groups[path]); n > 0 && (rows > 0 || l.f.whole()) {
			out[path] = 0
			rows--
			if l.f.whole() {
				out[path] = n
			}
		}
	}
	if l.f.whole() {
		return out
	}
	for _, most := range []int{1, 2, math.MaxInt} {
		for _, path := range inOrder(l.groups) {
			for group := l.groups[path]; out[path] < min(most, len(group)); out[path]++ {
				lines := 1
				if !l.full {
					lines += len(l.reason(group[out[path]]))
				}
				if lines > rows {
					break
				}
				rows -= lines
			}
		}
	}
	return out
}

// why is why the path is not a better one; where there is none, in the few words of a cause. `status PEER` has what was tried.
func why(p control.PeerStatus) string {
	if p.Path == "none" && p.Cause != (cause.Cause{}) {
		return p.Cause.String()
	}
	return p.Reason
}

// reason is what stands below a peer.
func (l listed) reason(p control.PeerStatus) []string {
	const indent = "    "
	lines := wording.Wrap(clean(why(p)), l.on.Width-len(indent))
	if len(lines) > reasonLines && !l.f.whole() {
		lines = lines[:reasonLines]
		lines[reasonLines-1] += " …"
	}
	for i := range lines {
		lines[i] = indent + lines[i]
	}
	return lines
}

func traffic(p control.PeerStatus) uint64 { return p.TxBytes + p.RxBytes + p.LANBytes }

//nolint:gochecknoglobals // constants
var (
	fullHead  = []string{"PEER", "PODS", "VIA", "RTT", "QUEUE", "RATE", "SINCE", "TX", "RX", "DROPS", "ENDPOINT", "REASON"}
	shortHead = []string{"PEER", "VIA", "RTT", "QUEUE", "RATE", "SINCE", "TX", "RX", "DROPS"}
)

func fullRow(p control.PeerStatus, now time.Time) []string {
	row := slices.Insert(shortRow(p, now), 1, strings.Join(p.PodCIDRs, ","))
	return append(row, cmp.Or(endpoint(p), "-"), cmp.Or(why(p), "-"))
}

func endpoint(p control.PeerStatus) string {
	if p.NAT64 {
		return p.Endpoint + " (NAT64)"
	}
	return p.Endpoint
}

func shortRow(p control.PeerStatus, now time.Time) []string {
	return []string{"  " + p.Node, cmp.Or(p.Transport, "-"), millis(p.RTTMs), queue(p), rate(p.RateMbps), since(p.Since, now), wording.Bytes(p.TxBytes),
		wording.Bytes(p.RxBytes + p.LANBytes), fmt.Sprint(p.Drops)}
}

// queue is how long packets wait, here for the path and on it, where there is one.
func queue(p control.PeerStatus) string {
	if p.Path == "none" || p.QueueMs == nil && p.WayMs == nil {
		return "-"
	}
	var sum float64
	for _, ms := range []*float64{p.QueueMs, p.WayMs} {
		if ms != nil {
			sum += *ms
		}
	}
	return millis(&sum)
}

// rate is what a path took when it was last busy, in bits per second.
func rate(mbps *float64) string {
	switch {
	case mbps == nil:
		return "-"
	case *mbps >= 999.5:
		return fmt.Sprintf("%.3g Gbit/s", *mbps/1000)
	default:
		return fmt.Sprintf("%.3g Mbit/s", *mbps)
	}
}
