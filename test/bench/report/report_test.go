package report

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/tier"
)

// Their module is compiled for this tier only.
var _ = tier.Package(tier.OfAll)

func TestQuantile(t *testing.T) {
	v := []float64{5, 1, 4, 2, 3}
	if got := Median(v); got != 3 {
		t.Errorf("median of 1 to 5 is %g", got)
	}
	slices.Sort(v)
	for q, want := range map[float64]float64{0: 1, 0.5: 3, 0.99: 5, 1: 5} {
		if got := Quantile(v, q); got != want {
			t.Errorf("quantile %g of 1 to 5 is %g, want %g", q, got, want)
		}
	}
	if got := Quantile(nil, 0.5); got != 0 {
		t.Errorf("quantile of nothing is %g", got)
	}
}

func row(v ...float64) *Row { return &Row{Values: map[Metric][]float64{FlowGbps: v}} }

func TestRatioIsByRound(t *testing.T) {
	if got, ok := Ratio(row(8, 3, 5), row(4, 1, 2), FlowGbps); !ok || got != 2.5 {
		t.Errorf("ratio %g, want 2.5, the median of 2, 3 and 2.5", got)
	}
	for name, pair := range map[string][2]*Row{
		"no reference":      {row(1), nil},
		"no value":          {row(), row()},
		"unequal rounds":    {row(1, 2), row(1)},
		"a reference of 0":  {row(1), row(0)},
		"no row at all":     {nil, nil},
		"another metric":    {row(1), {Values: map[Metric][]float64{FourGbps: {1}}}},
		"a missing measure": {{}, row(1)},
	} {
		if got, ok := Ratio(pair[0], pair[1], FlowGbps); ok {
			t.Errorf("%s: ratio %g", name, got)
		}
	}
}

func TestMerge(t *testing.T) {
	var r Row
	r.Merge(Row{Path: "direct", Values: map[Metric][]float64{FlowGbps: {2}}})
	r.Merge(Row{Values: map[Metric][]float64{FlowGbps: {5}}})
	r.Merge(Row{Values: map[Metric][]float64{FlowGbps: {3}}})
	m, _ := r.Median(FlowGbps)
	if w, ok := r.Worst(FlowGbps); !ok || w != 5 || m != 3 || r.Path != "direct" {
		t.Errorf("%+v: median %g, worst %g", r, m, w)
	}
	if _, ok := r.Worst(FourGbps); ok {
		t.Error("the worst of nothing")
	}
}

// example has a value for every goal.
func example() Report {
	part := func(rows ...Row) *Part {
		return &Part{
			Taken:  time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC),
			Took:   90 * time.Second,
			Rounds: 3,
			Flow:   4 * time.Second,
			Machine: Machine{
				CPU:      "A CPU",
				Cores:    2,
				MemoryMB: 4096,
				Kernel:   "6.1",
				Go:       "go1.26",
				Versions: map[string]string{"b": "2", "a": "1"},
			},
			Rows: rows,
		}
	}
	clean := func(carrier, path string, gbps float64) Row {
		return Row{
			Carrier: carrier,
			Path:    path,
			Values: map[Metric][]float64{
				FlowGbps:   {gbps, gbps + 1, gbps - 1},
				FourGbps:   {gbps, gbps, gbps},
				MachineCPU: {9 / gbps, 9 / gbps, 9 / gbps},
				TunnelCPU:  {1, 1, 1},
				AnswerTCP:  {60, 50, 70},
				AnswerUDP:  {50, 50, 50},
				PingIdle:   {0.2, 0.2, 0.2},
				PingLoad:   {1, 1, 1},
				PingLoad99: {3, 3, 3},
				PeakMB:     {50, 60, 55},
			},
		}
	}
	link := func(loss, mbps float64) Row {
		return Row{
			Carrier: Direct,
			X:       loss,
			Values: map[Metric][]float64{
				FlowMbps:   {mbps},
				PingIdle:   {50.2},
				PingLoad:   {55},
				PingLoad99: {60.2},
				PingMax:    {70},
				PingLost:   {0.01},
				StreamLost: {0.0105},
				Jitter:     {2},
				StreamFlow: {60},
			},
		}
	}
	native := clean(Native, "native ip", 18)
	native.Add(PathAfter, 2)
	return Report{Parts: map[string]*Part{
		Clean: part(clean(Reference, "", 4), clean(Direct, "direct tcp", 10), clean(Relayed, "relayed relay/tcp", 2)),
		Packets: part(Row{
			Carrier: Reference,
			Values:  map[Metric][]float64{PacketRate: {20}},
		}, Row{Carrier: Direct, Values: map[Metric][]float64{PacketRate: {18}, PeakMB: {155}}}),
		Link: part(link(0, 93), link(0.01, 70), link(0.03, 44)),
		LAN:  part(clean(Plain, "", 20), native, clean(PlainVXLAN, "", 15), clean(VXLAN, "vxlan vxlan", 14)),
		Idle: part(Row{
			Carrier: Direct,
			X:       1000,
			Values:  map[Metric][]float64{IdleMB: {55}, IdleCPU: {0.004}, StartPods: {0.1}, StartReady: {2}},
		}),
		Egress: part(Row{
			Carrier: "routes",
			X:       1,
			Values:  map[Metric][]float64{FlowGbps: {20}, AnswerTCP: {30}, ApplyMs: {1}},
		},
			Row{
				Carrier: "routes",
				X:       1000,
				Values:  map[Metric][]float64{FlowGbps: {20}, AnswerTCP: {30}, ApplyMs: {9}},
			}),
		Code: part(Row{Carrier: "tunnel Send/64", Values: map[Metric][]float64{CodeNs: {70}, CodeAllocs: {0}}}),
	}}
}

func TestGoals(t *testing.T) {
	want := map[string]Verdict{
		"one TCP flow, direct, to wireguard-go":                  Reached,    // 2.5
		"CPU-seconds per GB, to wireguard-go":                    Reached,    // 0.4
		"1200-byte datagrams without loss, to wireguard-go":      AboveFloor, // 0.9
		"one TCP flow through one relay":                         AboveFloor, // 2
		"100 Mbit/s, 25 ms, 0 % loss: one cubic flow":            Reached,
		"100 Mbit/s, 25 ms, 1 % loss: one cubic flow":            AboveFloor,
		"100 Mbit/s, 25 ms, 3 % loss: one cubic flow":            Missed,
		"ping p99 beside that flow, above idle, 1 % loss":        Reached,    // 10
		"10 Mbit/s of datagrams at 1 % loss beside a flow: lost": Reached,    // 1.05 %
		"one LAN: one TCP flow, native, to plain veth":           AboveFloor, // 0.9
		"one LAN: native after the first packet":                 Reached,
		"heap allocations per packet in our own code":            Reached,
		"idle agent, 1000 members: start-up":                     AboveFloor,
		"memory of a saturated agent":                            Missed, // by packets
	}
	r := example()
	for _, g := range Goals() {
		v, verdict := g.Judge(r)
		if verdict == Unmeasured {
			t.Errorf("%s is not measured", g.Name)
		}
		if w, ok := want[g.Name]; ok && verdict != w {
			t.Errorf("%s: %s is %q, want %q", g.Name, g.text(v), verdict, w)
		}
		delete(want, g.Name)
		if _, none := g.Judge(Report{}); none != Unmeasured {
			t.Errorf("%s of an empty report is %q", g.Name, none)
		}
	}
	for name := range want {
		t.Errorf("no goal %q", name)
	}
}

func TestWriteLoadEmbed(t *testing.T) {
	dir := t.TempDir()
	r := example()
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	again, err := Load(filepath.Join(dir, DataFile))
	if err != nil {
		t.Fatal(err)
	}
	if again.Markdown() != r.Markdown() {
		t.Error("a report that was written and read gives another page")
	}
	page := filepath.Join(dir, "PAGE.md")
	const frame = "# Title\n" + MarkBegin + "\n" + MarkEnd + "\nend\n"
	if err := os.WriteFile(page, []byte(frame), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time replaces the first one's
		if err := r.Embed(page, "results"); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(frame, MarkEnd, r.Summary("results")+MarkEnd, 1); string(got) != want {
		t.Errorf("the page is\n%s", got)
	}
	if _, err := r.embedded("no marks", "results"); !errors.Is(err, ErrMarks) {
		t.Errorf("a page without marks: %v", err)
	}
}

func TestLoadRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), DataFile)
	if r, err := Load(file); err != nil || r.Parts == nil {
		t.Errorf("no file: %+v, %v", r, err)
	}
	for _, bad := range []string{"{", `{"parts": {"speed": {}}}`, `{"parts": {"clean": null}}`} {
		if err := os.WriteFile(file, []byte(bad), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(file); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}

func TestMarkdown(t *testing.T) {
	page := example().Markdown()
	for _, want := range []string{
		"| one TCP flow, direct, to wireguard-go | ≥ 1.60 × | ≥ 2.20 × | 2.50 × | goal |",
		"| 100 Mbit/s, 25 ms, 3 % loss: one cubic flow | ≥ 45.0 Mbit/s | ≥ 80.0 Mbit/s | 44.0 Mbit/s | **missed** |",
		"| edgemesh | 10.00 | 9.00–11.00 | 2.50 | 10.00 | 0.90 | 1.00 | 60 | 50 | 0.20 | 1.00 | 3.00 | 55 | direct tcp |",
		"Measured 2026-11-20 12:00 UTC: A CPU, 2 cores, 4096 MB, Linux 6.1, go1.26; a 1, b 2. 3 rounds, flows of 4s, 1m30s in all.",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	// Carriers beside each other, and under the figures of all parts what all of them took.
	summary := example().Summary("results")
	for _, want := range []string{
		", 10m30s in all. [All figures](results/README.md)",
		"TCP from pod to pod:\n\n| carrier | 1 flow, Gbit/s | min–max | 4 flows, Gbit/s | path |\n",
		"| edgemesh | 1 | 70.0 | 70.0–70.0 |\n",
	} {
		if !strings.Contains(summary, want) {
			t.Errorf("no %q in\n%s", want, summary)
		}
	}
	if strings.Contains(page, "Beware") {
		t.Error("a quiet machine is called busy")
	}
	busy := example()
	busy.Parts[Clean].Others = 0.4
	if !strings.Contains(busy.Markdown(), "used up to 40 % of the machine") {
		t.Error("a busy machine is not reported")
	}
}

// TestResults holds that the committed pages show the committed figures.
func TestResults(t *testing.T) {
	dir := filepath.Join("..", "results")
	r, err := Load(filepath.Join(dir, DataFile))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Parts) == 0 {
		t.Skip("no figures have been taken yet")
	}
	page, err := os.ReadFile(filepath.Join(dir, PageFile))
	if err != nil || string(page) != r.Markdown() {
		t.Errorf("%s does not show %s: run make bench-page (%v)", PageFile, DataFile, err)
	}
	summary, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "performance.md"))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := r.embedded(string(summary), "../test/bench/results"); err != nil || again != string(summary) {
		t.Errorf("docs/performance.md does not show %s: run make bench-page (%v)", DataFile, err)
	}
}
