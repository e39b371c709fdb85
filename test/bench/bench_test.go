package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/bench/report"
	"edgemesh/test/lab/link"
	"edgemesh/test/tier"
)

// They build what the benchmark compares with.
var _ = tier.Package(tier.OfAll)

func TestOptions(t *testing.T) {
	for _, good := range [][]string{
		nil, {"-short"}, {"-link"}, {"-rounds", "1", "-time", "1s", "-parts", "clean,egress"},
		{"-carriers", "veth,nebula"},
	} {
		if o, err := parseOptions(good); err != nil {
			t.Errorf("%q: %v", good, err)
		} else if len(o.parts) == 0 || len(o.plan.carriers) == 0 {
			t.Errorf("%q: nothing to measure: %+v", good, o)
		}
	}
	for arg, bad := range map[string][]string{
		"-rounds":   {"-rounds", "-1"},
		"-time":     {"-time", "500ms"},
		"-parts":    {"-parts", "clean,speed"},
		"-carriers": {"-carriers", "carrier-pigeon"},
		"-page":     {"-page", "performance.md"},
		"-render":   {"-render"},
	} {
		if _, err := parseOptions(bad); err == nil || !strings.Contains(err.Error(), arg) {
			t.Errorf("%q: %v, want an error that names %s", bad, err, arg)
		}
	}
	o, err := parseOptions([]string{"-link", "-time", "2s", "-carriers", "veth"})
	if err != nil || !slices.Equal(o.parts, []string{report.Link}) || o.plan.linkFlow != 2*time.Second ||
		!slices.Equal(o.plan.linkCarriers, []string{"veth"}) {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestLinkText(t *testing.T) {
	d, err := link.Parse(linkText)
	if err != nil || d.Rate != 100e6 || d.Delay != 25*time.Millisecond || d.QueueTime != 50*time.Millisecond ||
		d.Loss != 0 {
		t.Errorf("the link is %+v, %v", d, err)
	}
	if !slices.Contains(linkLosses(), report.StreamLoss) {
		t.Error("the stream of datagrams has no row")
	}
}

// TestFullRunFits holds the promise of the make target.
func TestFullRunFits(t *testing.T) {
	total := time.Duration(0)
	for _, name := range report.Parts() {
		total += fullPlan().lasts(name)
	}
	if total > 26*time.Minute {
		t.Errorf("a full run takes %s, want at most 26 minutes", total)
	}
}

// Every cell is measured once in a round, those side by side for about as long, and all of them within the promise of the
// make target, with time for turns that are repeated.
func TestAllCellsFit(t *testing.T) {
	o, err := parseOptions([]string{"-cells", "."})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, groups := range o.matrix.stages() {
		var took []time.Duration
		for _, cells := range groups {
			var d time.Duration
			for _, c := range cells {
				seen[c.String()]++
				d += o.matrix.lasts(c)
			}
			took = append(took, d)
		}
		if least, most := slices.Min(took), slices.Max(took); least < most/10*8 {
			t.Errorf("groups side by side take %s", took)
		}
	}
	for _, c := range o.matrix.cells {
		if seen[c.String()] != 1 {
			t.Errorf("%s is measured %d times in a round", c, seen[c.String()])
		}
	}
	if d := o.matrix.allLast(); d > 80*time.Minute || d < 20*time.Minute {
		t.Errorf("a run takes %s, want at most 80 minutes", d)
	}
}

// The part of the matrix in `make bench` takes less than 5 minutes, carriers' start and repeated turns included.
func TestAlwaysCellsFit(t *testing.T) {
	o, err := parseOptions([]string{"-cells", ".", "-cells-always"})
	if err != nil {
		t.Fatal(err)
	}
	if d := o.matrix.allLast(); d > 4*time.Minute || len(o.matrix.cells) < 3 {
		t.Errorf("%d cells take %s", len(o.matrix.cells), d)
	}
}

func TestAddBenchmarks(t *testing.T) {
	p := &report.Part{}
	err := addBenchmarks(p, "tunnel", `goos: linux
BenchmarkSend/64-2   	    3204	        73.5 ns/op	 870.61 MB/s	       0 B/op	       1 allocs/op
BenchmarkPlain 	    3204	        5 ns/op	       0 B/op	       0 allocs/op
PASS`)
	if err != nil {
		t.Fatal(err)
	}
	send, plain := p.Row("tunnel Send/64", 0), p.Row("tunnel Plain", 0)
	if v, ok := send.Median(report.CodeNs); !ok || v != 73.5 {
		t.Errorf("ns of %+v", p.Rows)
	}
	if v, ok := send.Median(report.CodeAllocs); !ok || v != 1 {
		t.Errorf("allocations of %+v", p.Rows)
	}
	if v, ok := plain.Median(report.CodeAllocs); !ok || v != 0 {
		t.Errorf("allocations of %+v", p.Rows)
	}
	if err := addBenchmarks(p, "tunnel", "PASS\n"); err == nil {
		t.Error("no benchmark is no error")
	}
}

// TestEgressFilesNameEveryPeer holds that all methods get the same peers.
func TestEgressFilesNameEveryPeer(t *testing.T) {
	e := egressWorld{
		own:   "10.1.0.0/24",
		via:   "5.5.1.1",
		peers: []string{egressBlock(0), egressBlock(300), "10.2.0.0/24"},
	}
	if egressBlock(300) != "100.65.44.0/24" {
		t.Errorf("block 300 is %s", egressBlock(300))
	}
	for _, w := range egressMethods() {
		_, file := w.set(e)
		last := -1
		for _, p := range e.peers {
			at := strings.Index(file, " "+p)
			if at <= last {
				t.Errorf("%s: %s is missing or not behind the others in\n%s", w.name, p, file)
			}
			last = at
		}
	}
}

func TestCounter(t *testing.T) {
	const text = "TcpExt: SyncookiesSent TCPTimeouts TCPSpuriousRTOs\nTcpExt: 1 22 3\nIpExt: InNoRoutes TCPTimeouts\nIpExt: 4 5\n"
	for name, want := range map[string]int{"TCPTimeouts": 22, "TCPSpuriousRTOs": 3, "InNoRoutes": 4, "TcpExt:": 0, "unknown": 0} {
		if got := counter(text, name); got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
}
