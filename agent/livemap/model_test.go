package livemap

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/findings"
	"edgemesh/agent/observe"
)

func ms(v float64) *float64 { return &v }

// heard is that a node, whose peer ID is its name in upper case, reports pairs.
func heard(node, site string, pairs ...observe.Pair) observe.Event {
	return observe.Event{Node: node, PeerID: strings.ToUpper(node), Site: site, Report: &observe.Report{Version: "1", Pairs: pairs}}
}

func decode(t *testing.T, b []byte) (m message) {
	t.Helper()
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return m
}

// Two ends become one pair with the worse path; throughput is what was sent, or what the other end got; changes are remembered.
func TestPair(t *testing.T) {
	m, now := newModel(), time.Now()
	for _, n := range []string{"a", "b", "c"} {
		m.apply(observe.Event{Node: n, PeerID: strings.ToUpper(n), Self: n == "c"}, now)
	}
	pair := func(peer, path string, tx, rx, lan uint64) observe.Pair {
		return observe.Pair{Peer: peer, Path: path, TxBytes: tx, RxBytes: rx, LANBytes: lan, RTTMs: ms(1.2345), Relay: "12D3KooWrelay", Reason: "why " + path}
	}
	m.apply(heard("a", "", pair("B", "direct", 1e6, 0, 0), pair("C", "direct", 0, 0, 0), pair("Z", "direct", 1, 0, 0)), now)
	m.apply(heard("b", "", pair("A", "relayed", 0, 1e6, 0)), now)
	full := decode(t, m.full(now))
	if len(full.Nodes) != 3 || len(full.Edges) != 1 || full.Self != "c" {
		t.Fatalf("%+v", full)
	}
	if e := full.Edges[0]; e.A != "a" || e.B != "b" || e.Path != "relayed" || *e.RTT != 1.2 || e.Relay != "…ooWrelay" {
		t.Errorf("%+v", e)
	}
	_ = m.changes(true, now)
	if news := m.changes(true, now); news != nil {
		t.Errorf("nothing has changed: %s", news)
	}
	now = now.Add(4 * time.Second)
	m.apply(heard("a", "", pair("B", "direct", 6e6, 0, 0)), now)
	m.apply(heard("b", "", pair("A", "direct", 0, 6e6, 2e6)), now)
	news := decode(t, m.changes(true, now))
	if len(news.Edges) != 1 || news.Edges[0].Path != "direct" || news.Edges[0].Forth != 14 || news.Edges[0].Back != 0 || news.Full {
		t.Errorf("%+v", news)
	}
	now = now.Add(4 * time.Second)
	m.apply(heard("a", "", pair("B", "direct", 6e6, 0, 0)), now)
	m.apply(heard("b", "", pair("A", "direct", 0, 6e6, 2e6)), now)
	if news := m.changes(false, now); news != nil {
		t.Errorf("numbers alone: %s", news)
	}
	if news := decode(t, m.changes(true, now)); len(news.Edges) != 1 || news.Edges[0].Forth != 7 {
		t.Errorf("numbers, later: %+v", news)
	}
	m.apply(observe.Event{Node: "a", PeerID: "A", Error: "unreachable"}, now) // b still says so
	if news := decode(t, m.changes(true, now)); news.Nodes[0].State != unknown || news.Nodes[0].Why != "unreachable" || len(news.Gone.Nodes)+len(news.Gone.Edges) != 0 {
		t.Errorf("%+v", news)
	}
	m.apply(heard("b", ""), now)
	if news := decode(t, m.changes(true, now)); !slices.Equal(news.Gone.Edges, []string{"a|b"}) {
		t.Errorf("%+v", news)
	}
	d, ok := m.detail("b", "a")
	if !ok || len(d.History) != 4 || d.History[0].Path != "" || d.History[1].Path != "direct" || d.History[2].Reason != "why relayed" || len(d.Ends) != 0 {
		t.Errorf("%+v", d)
	}
	for i := range 100 {
		m.apply(heard("b", "", pair("A", observe.Paths[i%6], 0, 1, 0)), now)
	}
	if d, _ := m.detail("a", "b"); len(d.History) != maxHistory || len(d.Ends) != 1 || d.Ends[0].Node != "b" || d.Ends[0].Relay == "" {
		t.Errorf("%d changes, %+v", len(d.History), d.Ends)
	}
	m.apply(observe.Event{Node: "a", PeerID: "A", Gone: true}, now)
	if _, ok := m.detail("a", "b"); ok || len(m.names) != 2 {
		t.Errorf("a pair of a node that has left; %v", m.names)
	}
}

// A pair that was made only to observe is not shown.
func TestUnused(t *testing.T) {
	m, now := newModel(), time.Now()
	m.apply(observe.Event{Node: "b", PeerID: "B"}, now)
	me := heard("a", "", observe.Pair{Peer: "B", Path: "relayed"})
	me.Self = true
	m.apply(me, now)
	m.apply(heard("b", "", observe.Pair{Peer: "A", Path: "relayed"}), now)
	if f := decode(t, m.full(now)); len(f.Edges) != 0 {
		t.Errorf("%+v", f.Edges)
	}
	m.apply(heard("b", "", observe.Pair{Peer: "A", Path: "relayed", RxBytes: 1}), now)
	if c := decode(t, m.changes(true, now)); len(c.Edges) != 1 {
		t.Errorf("%+v", c)
	}
}

// Findings are where they are about, the gravest report of several has the word, and their consequences are apart. Nothing is
// well without a fresh report, and nothing is judged here: a pair without a path makes no trouble of its own. Nobody reports for another node (the tun).
func TestFindings(t *testing.T) {
	m, now := newModel(), time.Now()
	relayID := "12D3KooWaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaarelay1"
	early := now.Add(-time.Hour)
	for _, n := range []string{"a", "b", "c", "d"} {
		m.apply(observe.Event{Node: n, PeerID: strings.ToUpper(n)}, now)
	}
	report := func(n string, lost bool, all ...findings.Finding) observe.Event {
		e := heard(n, "", observe.Pair{Peer: "D", Path: "none"})
		e.Report.Relays = []observe.Relay{{PeerID: relayID, Reserved: !lost, Lost: lost, Addr: "/ip4/5.5.5.5/tcp/4001"}}
		e.Report.Findings = all
		return e
	}
	dead := findings.Finding{ID: "relay-unreachable", Severity: findings.Warning, Subject: relayID, Text: "refuses", Since: &now, Source: "agent", Victims: []string{"peer-offline d"}}
	m.apply(report("a", true, dead), now)
	worse := dead
	worse.Severity, worse.Text, worse.Since, worse.Victims = findings.Broken, "is dead", &early, []string{"peer-offline C", "udp " + relayID}
	m.apply(report("b", true, worse, findings.Finding{ID: "tun", Node: "a", Severity: findings.Warning, Subject: "edgemesh-tun", Text: "different"},
		findings.Finding{ID: "forward", Severity: findings.Note, Text: "routes"}), now)
	m.apply(report("c", false), now)
	states := func(full message) map[string]string {
		out := map[string]string{}
		for _, n := range full.Nodes {
			out[n.ID] = n.State
		}
		for _, r := range full.Relays {
			out[r.Name] = r.State
		}
		return out
	}
	full := decode(t, m.full(now))
	if got, want := states(full), map[string]string{"a": affected, "b": warning, "c": affected, "d": affected, "5.5.5.5": broken}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if len(full.Findings) != 3 || full.Relays[0].Nodes != 1 {
		t.Fatalf("%+v, %+v", full.Findings, full.Relays)
	}
	f := full.Findings[1]
	if f.Kind != "relay-unreachable" || f.Severity != findings.Broken || f.Text != "is dead" || f.Relay != "…aarelay1" || f.Node != "" || f.Since != early.UTC().Format(time.RFC3339) ||
		!slices.Equal(f.By, []string{"a", "b"}) || !slices.Equal(f.Victims, []string{"peer-offline c", "peer-offline d", "udp …aarelay1"}) {
		t.Errorf("%+v", f)
	}
	if f := full.Findings[2]; f.Node != "b" || f.Subject != "edgemesh-tun" {
		t.Errorf("%+v", f)
	}
	_ = m.changes(true, now)
	now = now.Add(freshFor + time.Second)
	m.apply(report("c", true), now)
	_ = m.changes(true, now)
	m.sent.nodes = nil
	full = decode(t, m.full(now))
	if got, want := states(full), map[string]string{"a": unknown, "b": unknown, "c": well, "d": unasked, "5.5.5.5": unknown}; !maps.Equal(got, want) || len(full.Findings) != 0 {
		t.Errorf("later: %v, want %v; %+v", got, want, full.Findings)
	}
}

// What became old is passed on although nothing was heard.
func TestOld(t *testing.T) {
	m, now := newModel(), time.Now()
	m.apply(heard("a", ""), now)
	_ = m.full(now)
	_ = m.changes(true, now)
	now = now.Add(freshFor + time.Second)
	if news := m.changes(false, now); news != nil {
		t.Errorf("%s", news)
	}
	if news := decode(t, m.changes(true, now)); len(news.Nodes) != 1 || news.Nodes[0].State != unknown || !strings.HasPrefix(news.Nodes[0].Why, "last heard ") {
		t.Errorf("%+v", news)
	}
}

// The membership says where a node stands, else its LAN does; a LAN of two named sites is neither.
func TestSites(t *testing.T) {
	members := map[string]*member{}
	for name, site := range map[string]string{"a": "oslo", "b": "", "c": "", "d": "", "e": "x", "f": "y", "g": "", "h": ""} {
		members[name] = &member{Event: observe.Event{Node: name, Site: site}}
	}
	l := lans{}
	l.join("b", "a")
	l.join("d", "c")
	l.join("e", "g")
	l.join("g", "f")
	l.join("f", "e") // again
	want := map[string]string{"a": "oslo", "b": "oslo", "c": "LAN of c", "d": "LAN of c", "e": "x", "f": "y", "g": "LAN of e", "h": ""}
	if got := l.sites(members); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestRound(t *testing.T) {
	for v, want := range map[float64]float64{0: 0, 0.001: 0, 0.0123: 0.012, 1.234: 1.2, 12.9: 13, 987.6: 990, 12345: 12000} {
		if got := round(v); got != want {
			t.Errorf("%v: %v, want %v", v, got, want)
		}
	}
}

// fleet is what an observer hears of n nodes at sites of ten, each with a few pairs, in step i.
func fleet(n, i int) (out []observe.Event) {
	for k := range n {
		e := heard(fmt.Sprintf("edge-%d", k), fmt.Sprintf("site-%d", k/10))
		e.Self, e.All = k == 0, k == 0
		e.Report.Relays = []observe.Relay{{PeerID: "12D3KooWrelay-one", Reserved: true}, {PeerID: "12D3KooWrelay-two", Reserved: k%2 == 0}}
		add := func(to int, path string) {
			if to == k || to >= n {
				return
			}
			rtt := float64(k%50) + 0.5
			at := time.Unix(1_700_000_000, 0)
			e.Report.Pairs = append(e.Report.Pairs, observe.Pair{Peer: fmt.Sprintf("EDGE-%d", to), Path: path, Transport: "quic", RTTMs: &rtt, Since: &at,
				Reason: "symmetric NATs on both sides", TxBytes: uint64(1e6 * (i + 1) * (k%7 + 1)), RxBytes: uint64(1e5 * (i + 1))})
		}
		add(k/10*10+(k+1)%10, "native")
		add((k+37)%n, []string{"relayed", "punched", "direct"}[(k+i)%3])
		if add((k+211)%n, "punched"); k%50 == 3 {
			add((k+213)%n, "none")
		}
		out = append(out, e)
	}
	return out
}

// With 500 nodes that report every 3 s, the model takes a small part of one core.
func BenchmarkModel500(b *testing.B) {
	m, now := newModel(), time.Now()
	for _, e := range fleet(500, 0) {
		m.apply(observe.Event{Node: e.Node, PeerID: e.PeerID}, now)
	}
	for i := 0; b.Loop(); i++ {
		for _, e := range fleet(500, i) {
			m.apply(e, now)
		}
		_ = m.changes(true, now)
		now = now.Add(3 * time.Second)
	}
}
