package livemap

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"edgemesh/agent/observe"
	"edgemesh/internal/wording"
)

const (
	// rateOver is the time that throughput is averaged over: bytes of native and VXLAN paths are counted every few seconds only.
	rateOver = 10 * time.Second
	// maxHistory bounds the changes of a pair that are remembered.
	maxHistory = 30
	// freshFor is how long a report says how a node is: members send one every 3 s.
	freshFor = 15 * time.Second
)

// model is what the page shows, merged from what members report.
type model struct {
	mu      sync.Mutex // a leaf
	members map[string]*member
	names   map[string]string // by peer ID
	pairs   map[[2]string]*pair
	lans    lans
	sent    view // what the pages have
	dirty   bool
}

// member is one node, as it was last heard.
type member struct {
	observe.Event
	at   time.Time
	ends map[string]*end // by the name of the other node
}

// end is what one node says of a pair.
type end struct {
	observe.Pair
	samples []sample
}

// sample is a node's counters at a time.
type sample struct {
	at          time.Time
	tx, rx, lan uint64
}

// pair is what two nodes say of each other, and what they said before.
type pair struct {
	path    string
	history []change
}

// change is a pair's path from a time on.
type change struct {
	At     time.Time `json:"at"`
	Path   string    `json:"path"` // "" when neither end used one any longer
	Relay  string    `json:"relay,omitempty"`
	Reason string    `json:"reason,omitempty"`
}

func newModel() *model {
	return &model{members: map[string]*member{}, names: map[string]string{}, pairs: map[[2]string]*pair{}, lans: lans{}}
}

// apply takes what was heard of one member.
func (m *model) apply(e observe.Event, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dirty = true
	if e.Gone {
		if m.names[e.PeerID] == e.Node {
			delete(m.names, e.PeerID)
		}
		delete(m.members, e.Node)
		maps.DeleteFunc(m.pairs, func(key [2]string, _ *pair) bool { return key[0] == e.Node || key[1] == e.Node })
		return
	}
	m.names[e.PeerID] = e.Node
	x := m.members[e.Node]
	if x == nil {
		x = &member{}
		m.members[e.Node] = x
	}
	before := x.ends
	x.Event, x.at, x.ends = e, now, map[string]*end{}
	if e.Report != nil {
		for _, p := range e.Report.Pairs {
			other, known := m.names[p.Peer]
			if !known || other == e.Node {
				continue // of no member: nobody can say who that is
			}
			x.ends[other] = &end{Pair: p, samples: before[other].add(p, now)}
			if p.Path == "native" {
				m.lans.join(e.Node, other)
			}
		}
	}
	for other := range before {
		if x.ends[other] == nil {
			m.merge(pairOf(e.Node, other), now)
		}
	}
	for other := range x.ends {
		m.merge(pairOf(e.Node, other), now)
	}
}

// add is e's samples, as far as they still count, and what p says now. e may be nil.
func (e *end) add(p observe.Pair, now time.Time) []sample {
	latest := sample{at: now, tx: p.TxBytes, rx: p.RxBytes, lan: p.LANBytes}
	if e == nil || e.TxBytes > p.TxBytes || e.RxBytes > p.RxBytes || e.LANBytes > p.LANBytes { // or the agent has been restarted
		return []sample{latest}
	}
	return append(slices.DeleteFunc(e.samples, func(s sample) bool { return now.Sub(s.at) > rateOver }), latest)
}

// merge notes what has become of a pair.
func (m *model) merge(key [2]string, now time.Time) {
	a, b := m.members[key[0]], m.members[key[1]]
	var worst *end
	if a != nil && b != nil && !m.unused(key[0], key[1]) {
		for _, e := range []*end{a.ends[key[1]], b.ends[key[0]]} {
			if e != nil && (worst == nil || worse(e.Path, worst.Path)) {
				worst = e
			}
		}
	}
	p := m.pairs[key]
	switch {
	case worst == nil && p != nil:
		m.note(p, "", change{At: now})
	case worst != nil && p == nil:
		p = &pair{}
		m.pairs[key] = p
		fallthrough
	case worst != nil:
		m.note(p, worst.Path, change{At: now, Path: worst.Path, Relay: m.nameOf(worst.Relay), Reason: worst.Reason})
	}
}

func (m *model) note(p *pair, path string, c change) {
	if p.path == path {
		return
	}
	p.path = path
	p.history = append(p.history, c)
	p.history = p.history[max(0, len(p.history)-maxHistory):]
}

// unused reports whether a pair is there only because of this node's queries: nothing was carried.
func (m *model) unused(a, b string) bool {
	x, y := m.members[a], m.members[b]
	if !x.Self && !y.Self {
		return false
	}
	for _, e := range []*end{x.ends[b], y.ends[a]} {
		if e != nil && (e.TxBytes+e.RxBytes+e.LANBytes > 0 || e.Path == "none") {
			return false
		}
	}
	return true
}

func pairOf(a, b string) [2]string { return [2]string{min(a, b), max(a, b)} }

// worse reports whether path a is one to look at rather than b.
func worse(a, b string) bool { return slices.Index(observe.Paths, a) > slices.Index(observe.Paths, b) }

// nameOf is the name of the member that has a peer ID, else the ID's end, which distinguishes relays.
func (m *model) nameOf(id string) string {
	if name := m.names[id]; name != "" {
		return name
	}
	return wording.ShortID(id)
}

// rate is a counter's growth over the samples, in Mbit/s.
func (e *end) rate(counter func(sample) uint64) float64 {
	if e == nil || len(e.samples) < 2 {
		return 0
	}
	first, last := e.samples[0], e.samples[len(e.samples)-1]
	seconds := last.at.Sub(first.at).Seconds()
	if seconds <= 0 {
		return 0
	}
	return float64(counter(last)-counter(first)) * 8 / 1e6 / seconds
}

// throughput is what goes from the node of end from to that of end to, in Mbit/s.
func throughput(from, to *end) float64 {
	sent := from.rate(func(s sample) uint64 { return s.tx })
	came := to.rate(func(s sample) uint64 { return s.rx })
	return round(max(sent, came) + to.rate(func(s sample) uint64 { return s.lan }))
}

// round leaves two digits: numbers that hardly change need not be sent.
func round(v float64) float64 {
	if v < 0.01 {
		return 0
	}
	scale := math.Pow(10, math.Floor(math.Log10(v))-1)
	return math.Round(math.Round(v/scale)*scale*1000) / 1000
}

// view is what all pages have.
type view struct {
	nodes    map[string]node
	edges    map[string]edge
	relays   map[string]relay
	findings map[string]finding
}

// node is a node on the page.
type node struct {
	ID      string `json:"id"`
	Site    string `json:"site"`
	State   string `json:"state"` // as in states
	Why     string `json:"why,omitempty"`
	Version string `json:"version,omitempty"`
	NAT     string `json:"nat,omitempty"`
	Relays  []use  `json:"relays,omitempty"`
	Since   string `json:"since,omitempty"` // when the agent started
	Self    bool   `json:"self,omitempty"`
	Left    int    `json:"left,omitempty"`
}

// use is what a node has of a relay.
type use struct {
	Relay string `json:"relay"`
	State string `json:"state"` // reserved, connected or lost
}

// edge is a pair on the page, with the worse of its ends' paths.
type edge struct {
	ID    string   `json:"id"`
	A     string   `json:"a"`
	B     string   `json:"b"`
	Path  string   `json:"path"`
	Relay string   `json:"relay,omitempty"`
	RTT   *float64 `json:"rtt,omitempty"`
	Forth float64  `json:"forth"` // Mbit/s from A to B
	Back  float64  `json:"back"`
	ms    float64  // RTT, to compare
}

// relay is a relay on the page.
type relay struct {
	ID    string `json:"id"`   // the end of its peer ID
	Name  string `json:"name"` // its host, if this node uses it
	State string `json:"state"`
	Nodes int    `json:"nodes"` // that have a reservation there
}

// now makes the view.
func (m *model) now(at time.Time) view {
	v := view{nodes: map[string]node{}, edges: map[string]edge{}, relays: map[string]relay{}, findings: map[string]finding{}}
	sites := m.lans.sites(m.members)
	for _, name := range slices.Sorted(maps.Keys(m.members)) {
		x := m.members[name]
		v.nodes[name] = m.node(x, sites[name], at)
		if x.Report == nil {
			continue
		}
		for _, r := range x.Report.Relays {
			id := wording.ShortID(r.PeerID)
			y := v.relays[id]
			y.ID, y.State, y.Name = id, cmp.Or(y.State, unknown), cmp.Or(y.Name, host(r.Addr))
			if r.Reserved {
				y.Nodes++
			}
			if !r.Lost && v.nodes[name].State == well {
				y.State = well
			}
			v.relays[id] = y
		}
	}
	m.place(v, at)
	for key, p := range m.pairs {
		if p.path == "" {
			continue
		}
		a, b := m.members[key[0]].ends[key[1]], m.members[key[1]].ends[key[0]]
		e := edge{ID: key[0] + "|" + key[1], A: key[0], B: key[1], Path: p.path, Forth: throughput(a, b), Back: throughput(b, a)}
		for _, x := range []*end{a, b} {
			if x != nil && x.Path == p.path && e.RTT == nil && x.RTTMs != nil {
				ms := round(*x.RTTMs)
				e.RTT, e.ms = &ms, ms
			}
			if x != nil && x.Path == p.path {
				e.Relay = cmp.Or(e.Relay, m.nameOf(x.Relay))
			}
		}
		v.edges[e.ID] = e
	}
	return v
}

func (m *model) node(x *member, site string, at time.Time) node {
	n := node{ID: x.Node, Site: site, State: unasked, Self: x.Self, Why: x.Error}
	r := x.Report
	switch {
	case x.Error != "":
		n.State = unknown
	case r != nil && at.Sub(x.at) > freshFor:
		n.State, n.Why = unknown, "last heard "+x.at.UTC().Format(time.TimeOnly)+" UTC"
	case r != nil:
		n.State = well
	}
	if r == nil {
		return n
	}
	n.Version, n.NAT, n.Left = r.Version, r.NAT, r.Left
	if !r.StartedAt.IsZero() {
		n.Since = r.StartedAt.UTC().Format(time.RFC3339)
	}
	for _, p := range r.Relays {
		u := use{Relay: wording.ShortID(p.PeerID), State: "connected"}
		switch {
		case p.Reserved:
			u.State = "reserved"
		case p.Lost:
			u.State = "lost"
		}
		n.Relays = append(n.Relays, u)
	}
	return n
}

// host is the host of a multiaddr: /ip4/5.5.5.5/tcp/4001, /dns4/relay.example/tcp/443.
func host(addr string) string {
	parts := strings.Split(addr, "/")
	if len(parts) < 3 {
		return ""
	}
	return parts[2]
}

// message is what a page is sent: everything, or what has changed.
type message struct {
	Full     bool      `json:"full,omitempty"`
	All      bool      `json:"all,omitempty"` // this node is an observer
	Self     string    `json:"self,omitempty"`
	Nodes    []node    `json:"nodes,omitempty"`
	Edges    []edge    `json:"edges,omitempty"`
	Relays   []relay   `json:"relays,omitempty"`
	Findings []finding `json:"findings,omitempty"`
	Gone     struct {
		Nodes    []string `json:"nodes,omitempty"`
		Edges    []string `json:"edges,omitempty"`
		Relays   []string `json:"relays,omitempty"`
		Findings []string `json:"findings,omitempty"`
	} `json:"gone,omitzero"` // their IDs
}

// full is everything that the pages have: changes follow on it.
func (m *model) full(at time.Time) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sent.nodes == nil {
		m.sent = m.now(at)
	}
	v := m.sent
	out := message{Full: true, Nodes: sorted(v.nodes), Edges: sorted(v.edges), Relays: sorted(v.relays), Findings: sorted(v.findings)}
	for name, x := range m.members {
		if x.Self {
			out.Self, out.All = name, x.All
		}
	}
	b, _ := json.Marshal(out) //nolint:errchkjson // strings and numbers
	return b
}

// changes is what has changed since the last call, nil for nothing. Without numbers, those of pairs wait for a later call, and so
// does what has merely become old: each message has the page draw everything again.
func (m *model) changes(numbers bool, at time.Time) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.dirty && !numbers {
		return nil
	}
	m.dirty = m.dirty && !numbers
	before, now := m.sent, m.now(at)
	m.sent = now
	var out message
	out.Nodes, out.Gone.Nodes = diff(before.nodes, now.nodes, equal)
	out.Edges, out.Gone.Edges = diff(before.edges, now.edges, func(a, b edge) bool {
		return a.Path == b.Path && a.Relay == b.Relay && (!numbers || a.ms == b.ms && a.Forth == b.Forth && a.Back == b.Back)
	})
	if !numbers {
		changed := map[string]bool{}
		for _, e := range out.Edges {
			changed[e.ID] = true
		}
		for id, e := range before.edges {
			if _, ok := now.edges[id]; ok && !changed[id] {
				now.edges[id] = e // what the pages have
			}
		}
	}
	out.Relays, out.Gone.Relays = diff(before.relays, now.relays, equal)
	out.Findings, out.Gone.Findings = diff(before.findings, now.findings, equal)
	if equal(out, message{}) {
		return nil
	}
	b, _ := json.Marshal(out) //nolint:errchkjson // strings and numbers
	return b
}

func equal[T any](a, b T) bool { return reflect.DeepEqual(a, b) }

func diff[T any](before, now map[string]T, same func(a, b T) bool) (changed []T, gone []string) {
	for _, id := range slices.Sorted(maps.Keys(now)) {
		if was, ok := before[id]; !ok || !same(was, now[id]) {
			changed = append(changed, now[id])
		}
	}
	for _, id := range slices.Sorted(maps.Keys(before)) {
		if _, ok := now[id]; !ok {
			gone = append(gone, id)
		}
	}
	return changed, gone
}

func sorted[T any](all map[string]T) (out []T) {
	for _, id := range slices.Sorted(maps.Keys(all)) {
		out = append(out, all[id])
	}
	return out
}
