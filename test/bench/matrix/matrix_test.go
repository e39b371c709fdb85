package matrix

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/bench/report"
	"edgemesh/test/tier"
)

// Their module is compiled for this tier only.
var _ = tier.Package(tier.OfAll)

// Every two levels meet in a cell, and there are not many.
func TestCells(t *testing.T) {
	cells := Cells()
	met := make(map[pair]bool)
	names := make(map[string]bool)
	for _, c := range cells {
		for _, p := range c.pairs() {
			met[p] = true
		}
		if names[c.String()] {
			t.Errorf("%s is there twice", c)
		}
		names[c.String()] = true
		if err := c.Link(1).Up.Check(); err != nil {
			t.Errorf("%s: %v", c, err)
		}
		if d := c.Lasts(5 * time.Second); d < 5*time.Second || d < roundTrips*2*c.Delay {
			t.Errorf("%s lasts %s", c, d)
		}
	}
	for _, c := range every() {
		for _, p := range c.pairs() {
			if !met[p] {
				t.Fatalf("%v and %v do not meet", p.a, p.b)
			}
		}
	}
	if n := len(cells); n > 60 {
		t.Errorf("%d cells", n)
	}
	for _, c := range Always() {
		if !names[c.String()] {
			t.Errorf("%s is not there", c)
		}
	}
	t.Logf("%d cells", len(cells))
}

func TestShares(t *testing.T) {
	low, high := 1.0, 1.0
	for _, s := range Varying.Shares(100) {
		low, high = min(low, s), max(high, s)
	}
	if low < 1-varyBy || low > 0.5 || high > 1+varyBy || high < 1.5 {
		t.Errorf("shares are between %g and %g", low, high)
	}
}

// Where links were measured apart, the page says so.
func TestRoundsOfThePage(t *testing.T) {
	var r Results
	if got := r.rounds(); got != "0" {
		t.Errorf("nothing measured: %s", got)
	}
	r.Row("one").Rounds[BareBBR] = make([]Round, 3)
	if got := r.rounds(); got != "3" {
		t.Errorf("one link: %s", got)
	}
	r.Row("another").Rounds[BareBBR] = make([]Round, 1)
	if got := r.rounds(); got != "1 to 3" {
		t.Errorf("another with fewer rounds: %s", got)
	}
}

// Of several kinds the lowest floor counts, and what is missed is named with both figures.
func TestFloors(t *testing.T) {
	cell := Cell{Rate{2 * mbit, 2 * mbit}, 75 * time.Millisecond, 50 * time.Millisecond, 0, 0, "", Voice}
	if f := cell.Floor(); f != (Floor{0.85, 150 * time.Millisecond, 0.005, 15 * time.Millisecond, 1.1}) {
		t.Errorf("thin with voice: %+v", f)
	}
	shaky := Cell{Rate{200 * mbit, 200 * mbit}, 25 * time.Millisecond, 500 * time.Millisecond, 0.03, 0.02, Varying, EightFlows}
	if f := shaky.Floor(); f != (Floor{Share: 0.65, Ping: 150 * time.Millisecond}) {
		t.Errorf("shaky: %+v", f)
	}
	for up, share := range map[int64]float64{2: 0.7, 5: 0.85} { // the upload fills 2 Mbit/s, so less is required
		lopsided := Cell{Rate{20 * mbit, up * mbit}, 25 * time.Millisecond, 50 * time.Millisecond, 0.01, 0, "", BothDirections}
		if f := lopsided.Floor(); f.Share != share {
			t.Errorf("upload beside, %d Mbit/s up: %+v", up, f)
		}
	}
	row := Row{Rounds: map[string][]Round{
		BareBBR:          {{Mbps: 2, IdleMs: 150, Ping99Ms: 190, VoiceLost: 0.001}},
		report.Reference: {{Short1MB: 1000}},
		report.Direct:    {{Mbps: 1.8, IdleMs: 150, Ping99Ms: 299, VoiceLost: 0.005, VoiceJitter: 14, Short1MB: 1090}},
	}}
	if what := cell.Floor().misses(cell, &row); what != nil {
		t.Errorf("held, but misses %q", what)
	}
	row.Rounds[report.Direct][0] = Round{Mbps: 1.6, IdleMs: 150, Ping99Ms: 301, VoiceLost: 0.0071, VoiceJitter: 16, Short1MB: 1200}
	want := []string{"share 0.80 of 0.85", "ping 151 of 150 ms (bare BBR 40)", "datagrams lost 0.7 of 0.6 %", "jitter 16 of 15 ms", "1 MB in 1.20 of 1.10 × wireguard-go"}
	if what := cell.Floor().misses(cell, &row); !slices.Equal(what, want) {
		t.Errorf("misses %q, want %q", what, want)
	}
	r := Results{Rows: []*Row{{Cell: Always()[1].String(), Rounds: row.Rounds}, {Cell: Always()[0].String(), Rounds: map[string][]Round{}}}}
	if page := r.floors(); !strings.Contains(page, "0 of 1 links") || !strings.Contains(page, "| 2 Mbit/s, 40 ms, queue 500 ms, 1 flow | share 0.80") {
		t.Errorf("page: %s", page)
	}
}

// The committed page shows the committed figures, and a carrier that was not measured has a dash.
func TestPage(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "docs", "measurements", "links")
	r, err := LoadResults(dir)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil || string(page) != r.Markdown() {
		t.Errorf("README.md there does not show %s (%v)", DataFile, err)
	}
	r = Results{Carriers: []string{BareBBR, BareCubic, report.Direct}, Rows: []*Row{{Cell: "a link", Rounds: map[string][]Round{
		BareBBR:       {{Mbps: 10, IdleMs: 5, PingMs: 15, Ping99Ms: 25}},
		report.Direct: {{Mbps: 9, IdleMs: 5, PingMs: 4, Ping99Ms: 8, VoiceLost: 0.01, VoiceJitter: 1}},
	}}}}
	if want := "\n| a link | 10.00; 10 / 20 | – | 0.90; 0 / 3; 1.0 % |\n"; !strings.Contains(r.Markdown(), want) {
		t.Errorf("no %q in\n%s", want, r.Markdown())
	}
}
