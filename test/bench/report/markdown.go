package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Markdown is the page of all figures.
func (r Report) Markdown() string {
	var b strings.Builder
	b.WriteString("# What was measured\n\n`make bench` writes this page and [results.json](results.json), every single value.\n" +
		"All ends and the load run on one machine, so ratios say more than absolutes; rounds are interleaved, values are medians over them.\n")
	b.WriteString("\n## Promised and measured\n\n")
	r.goals(&b)
	for _, s := range r.sections() {
		p := r.Parts[s.part]
		if p == nil {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", s.title, s.text)
		s.table(&b, p)
		for _, n := range p.Notes {
			fmt.Fprintf(&b, "\n%s\n", n)
		}
		fmt.Fprintf(&b, "\n%s\n", p.where())
	}
	return b.String()
}

// Summary is the part of the figures that the project's page shows. dir is where
// the page of all figures is, seen from there.
func (r Report) Summary(dir string) string {
	var b strings.Builder
	r.age(&b)
	r.goals(&b)
	for _, s := range []section{
		{part: Clean, title: "TCP from pod to pod", columns: []Metric{FlowGbps, FourGbps}, spread: FlowGbps},
		{part: Link, title: "One flow over 100 Mbit/s, 25 ms one way", condition: "loss, %", scale: 100, columns: []Metric{FlowMbps}, spread: FlowMbps},
	} {
		if p := r.Parts[s.part]; p != nil {
			fmt.Fprintf(&b, "\n%s:\n\n", s.title)
			s.table(&b, p)
		}
	}
	if p := r.Parts[Clean]; p != nil {
		whole := *p
		whole.Took, whole.Others = 0, 0
		for _, part := range r.Parts {
			whole.Took += part.Took
			whole.Others = max(whole.Others, part.Others)
		}
		fmt.Fprintf(&b, "\n%s [All figures](%s/README.md)\n", whole.where(), dir)
	}
	return b.String()
}

// age names the version and the commit of the oldest part. build/release reads this line.
func (r Report) age(b *strings.Builder) {
	var oldest *Part
	for _, p := range r.Parts {
		if oldest == nil || p.Taken.Before(oldest.Taken) {
			oldest = p
		}
	}
	if oldest == nil {
		return
	}
	m := oldest.Machine
	fmt.Fprintf(b, "Measured on version %s at commit %s, %s.\n\n", cmp.Or(m.Release, "unknown"),
		cmp.Or(m.Versions["edgemesh"], "unknown"), oldest.Taken.UTC().Format(time.DateOnly))
}

func (r Report) goals(b *strings.Builder) {
	t := table{head: []string{"measure", "floor", "goal", "measured", "reached"}, left: 1}
	for _, g := range Goals() {
		v, verdict := g.Judge(r)
		measured := "–"
		if verdict != Unmeasured {
			measured = g.text(v)
		}
		t.rows = append(t.rows, []string{g.Name, g.bound(g.Floor), g.bound(g.Goal), measured, string(verdict)})
	}
	t.write(b)
}

// section is how one part is shown.
type section struct {
	part, title, text string
	condition         string // title of the rows' X, empty when it says nothing
	scale             float64
	columns           []Metric
	spread            Metric // shown with its least and most
	ratio             Metric // shown against the reference
}

func (r Report) sections() []section {
	return []section{
		{
			part:  Clean,
			title: "Clean path",
			columns: []Metric{
				FlowGbps, FourGbps, MachineCPU, TunnelCPU, AnswerTCP, AnswerUDP, PingIdle, PingLoad, PingLoad99,
				PeakMB,
			},
			spread: FlowGbps,
			ratio:  FlowGbps,
			text: "From pod to pod: veth, bridge, forwarding with connection tracking, and between the two nodes nothing but veth. CPU-s per GB is that of the " +
				"whole machine, load generator included; tunnel is what the carrier's own processes at both ends (and the relay) use of it. Memory is the largest process's " +
				"resident peak. Nebula is as released, without offloads; its head of August 2026, with them, reached 3.9 Gbit/s in one flow in a trial between two bare namespaces here, where wireguard-go reached 4.4.",
		},
		{
			part:    Packets,
			title:   "Datagrams of 1200 bytes without loss",
			columns: []Metric{PacketRate, PacketCPU, PeakMB},
			spread:  PacketRate,
			ratio:   PacketRate,
			text:    "The highest rate that arrives whole (0.1 % counts as none), found by bisection. The row veth says what the load generator can do.",
		},
		{
			part:    Requests,
			title:   "Small requests and datagrams",
			columns: []Metric{Kept, New, SmallRate},
			spread:  Kept,
			ratio:   Kept,
			text:    "HTTP requests of a few bytes, 64 at a time; then datagrams of 64 bytes as fast as one sender makes them.",
		},
		{
			part:      Link,
			title:     "A link of 100 Mbit/s, 25 ms one way, queue 50 ms",
			condition: "loss, %",
			scale:     100,
			spread:    FlowMbps,
			columns: []Metric{
				FlowMbps, Second, PingIdle, PingLoad, PingLoad99, PingMax, PingLost, StreamLost, Jitter,
				StreamFlow,
			},
			text: "One cubic flow from pod to pod over an emulated link with random loss in both directions, and pings beside it. Then 10 Mbit/s of " +
				"1200-byte datagrams beside such a flow: what is lost of them, and their jitter.",
		},
		{
			part:      Edge,
			title:     "The rates of an edge, on that link without loss",
			condition: "Mbit/s",
			columns:   []Metric{TunnelMs, TunnelCPU, FlowMbps, Switches, Frames},
			ratio:     TunnelMs,
			text:      "CPU of the carrier's processes at both ends beside one paced cubic flow; 0 is nothing at all, 0.064 are 50 echo requests of 160 bytes a second in each direction.",
		},
		{
			part:      Hub,
			title:     "A hub whose pod asks each edge once in 5 s",
			condition: "edges",
			columns:   []Metric{PeerMB},
			text:      "By how much the anonymous memory of the hub's agent grows within a minute of it, 10 ms from its edges.",
		},
		{
			part:  LAN,
			title: "Two nodes on one LAN",
			columns: []Metric{
				FlowGbps, FourGbps, MachineCPU, AnswerTCP, AnswerUDP, PingIdle, PingLoad, PingLoad99, PathAfter,
			},
			spread: FlowGbps,
			text:   "Paths in the kernel, without encryption, beside what they are made of. Path after: from the first packet until both ends use it.",
		},
		{
			part:      Idle,
			title:     "An agent that has nothing to do",
			condition: "members",
			columns:   []Metric{IdleMB, IdleCPU, StartPods, StartReady},
			text:      "The members stand in the file; one of them and a relay are there.",
		},
		{
			part:      Egress,
			title:     "Which packets are for peers",
			condition: "peers",
			columns:   []Metric{FlowGbps, AnswerTCP, ApplyMs},
			spread:    AnswerTCP,
			text: "What a node's kernel does with each packet that leaves for a peer, by the number of peers, on plain veth: one iptables rule per peer, one rule " +
				"and an ipset, or routes in a table of our own. The measured peer comes last in the rules.",
		},
		{
			part:    Code,
			title:   "A packet's steps in our own code",
			columns: []Metric{CodeNs, CodeAllocs},
			text:    "Per operation, without kernel and network: `go test -bench . -benchmem ./tunnel/...`, those of a packet's steps.",
		},
	}
}

func (s section) table(b *strings.Builder, p *Part) {
	t := table{head: []string{"carrier"}, left: 1}
	if s.part == Code {
		t.head[0] = "step"
	}
	if s.condition != "" {
		t.head = append(t.head, s.condition)
	}
	paths := false
	for _, m := range s.columns {
		t.head = append(t.head, m.column().title)
		if m == s.spread {
			t.head = append(t.head, "min–max")
		}
		if m == s.ratio {
			t.head = append(t.head, "× "+Reference)
		}
	}
	for _, r := range p.Rows {
		paths = paths || r.Path != ""
	}
	if paths {
		t.head = append(t.head, "path")
	}
	for i := range p.Rows {
		t.rows = append(t.rows, s.cells(p, &p.Rows[i], paths))
	}
	t.write(b)
}

// cells is one row of the table.
func (s section) cells(p *Part, r *Row, paths bool) []string {
	cells := []string{r.Carrier}
	if s.condition != "" {
		x := r.X
		if s.scale != 0 {
			x *= s.scale
		}
		cells = append(cells, fmt.Sprintf("%g", x))
	}
	for _, m := range s.columns {
		c := m.column()
		v, ok := r.Median(m)
		cell := "–"
		if ok {
			cell = c.text(v)
		}
		cells = append(cells, cell)
		if m == s.spread {
			cell = "–"
			if ok {
				cell = c.text(slices.Min(r.Values[m])) + "–" + c.text(slices.Max(r.Values[m]))
			}
			cells = append(cells, cell)
		}
		if m == s.ratio {
			cell = "–"
			if v, ok := Ratio(r, p.Row(Reference, r.X), m); ok {
				cell = fmt.Sprintf("%.2f", v)
			}
			cells = append(cells, cell)
		}
	}
	if paths {
		cells = append(cells, r.Path)
	}
	return cells
}

// quietMachine is the share of CPU time that bystanders may use.
const quietMachine = 0.1

// where says on what machine a part ran, when, and which versions.
func (p *Part) where() string {
	m := p.Machine
	var versions []string
	for _, name := range slices.Sorted(maps.Keys(m.Versions)) {
		versions = append(versions, name+" "+m.Versions[name])
	}
	text := fmt.Sprintf("Measured %s: %s, %d cores, %d MB, Linux %s, %s; %s. %d rounds, flows of %s, %s in all.",
		p.Taken.UTC().Format("2006-01-02 15:04 UTC"), m.CPU, m.Cores, m.MemoryMB, m.Kernel, m.Go,
		strings.Join(versions, ", "), p.Rounds, p.Flow, p.Took.Round(time.Second))
	if p.Others > quietMachine {
		text += fmt.Sprintf(" **Beware:** something else used up to %.0f %% of the machine meanwhile; ratios suffer least.",
			100*p.Others)
	}
	return text
}

// table is a Markdown table.
type table struct {
	head []string
	rows [][]string
	left int // so many columns are aligned left, the others right
}

func (t table) write(b *strings.Builder) {
	rule := make([]string, len(t.head))
	for i := range rule {
		rule[i] = "---:"
		if i < t.left {
			rule[i] = "---"
		}
	}
	for _, row := range append([][]string{t.head, rule}, t.rows...) {
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
	}
}
