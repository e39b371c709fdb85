package matrix

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/bench/report"
)

// Drawn links are the same in every run, all can be emulated, and their kinds are there.
func TestDrawn(t *testing.T) {
	cells := Drawn()
	if !reflect.DeepEqual(cells, Drawn()) || len(cells) != 40 {
		t.Fatalf("%d cells, or others each time", len(cells))
	}
	if first := "29/2.9 Mbit/s, 40 ms, queue 670 ms, 1 flow"; cells[0].String() != first {
		t.Errorf("the first is %s, not %s: what was measured before is of other links", cells[0], first)
	}
	kinds := map[string]int{}
	for _, c := range cells {
		if err := c.Link(1).Down.Check(); err != nil {
			t.Errorf("%s: %v", c, err)
		}
		for _, share := range c.Varies.Shares(30) {
			if share < 0.29 || share > 1+varyBy {
				t.Errorf("%s: a share of %g", c, share)
			}
		}
		kinds[string(c.Varies)]++
		if c.Loss > 0 {
			kinds["lost"]++
		}
		if c.Rate.Up < c.Rate.Down {
			kinds["lopsided"]++
		}
		if c.Reorder > 0 {
			kinds["reordered"]++
		}
	}
	for _, kind := range []string{"", string(Varying), string(Fading), string(Falling), "lost", "lopsided", "reordered"} {
		if kinds[kind] < 2 {
			t.Errorf("%d links are %q", kinds[kind], kind)
		}
	}
}

// What an earlier run measured is kept as whole turns of all carriers, unless something else was measured, or all is there.
func TestResume(t *testing.T) {
	carriers := []string{BareBBR, report.Direct}
	old := func() Results {
		return Results{Sources: "a", Carriers: carriers, Took: time.Minute, Rows: []*Row{
			{Cell: "x", Rounds: map[string][]Round{BareBBR: make([]Round, 2), report.Direct: make([]Round, 1)}},
			{Cell: "y", Rounds: map[string][]Round{BareBBR: make([]Round, 2), report.Direct: make([]Round, 2)}},
		}}
	}
	r := Results{Sources: "a", Carriers: carriers}
	r.Resume(old(), 2)
	if len(r.Rows) != 2 || len(r.Row("x").Rounds[BareBBR]) != 1 || len(r.Row("y").Rounds[BareBBR]) != 2 || r.Took != time.Minute {
		t.Errorf("resumed %+v", r)
	}
	for name, r := range map[string]Results{"other sources": {Sources: "b", Carriers: carriers}, "other carriers": {Sources: "a", Carriers: carriers[:1]}} {
		if r.Resume(old(), 2); len(r.Rows) > 0 {
			t.Errorf("%s: resumed", name)
		}
	}
	whole := old()
	whole.Rows = whole.Rows[1:]
	if r := (Results{Sources: "a", Carriers: carriers}); len(r.Rows) == 0 {
		if r.Resume(whole, 2); len(r.Rows) > 0 {
			t.Error("all was there, and nothing is measured")
		}
	}
}

// The share is the lower direction's and at most 1, means come with their error.
func TestSummary(t *testing.T) {
	cells := slices.DeleteFunc(Cells(), func(c Cell) bool {
		return c.Load != BothDirections || c.Varies != "" || c.Loss < 0.01 || c.Rate.Down < shortRate
	})
	cell := cells[0]
	r := Results{Carriers: []string{BareBBR, report.Direct, report.TCP}, Rows: []*Row{{Cell: cell.String(), Rounds: map[string][]Round{
		BareBBR:       {{Mbps: 10, UpMbps: 4}, {Mbps: 10, UpMbps: 6}},
		report.Direct: {{Mbps: 9, UpMbps: 3, Ping99Ms: 30, IdleMs: 10, Short1MB: 2}, {Mbps: 9, UpMbps: 4, Ping99Ms: 30, IdleMs: 10, Short1MB: 2}},
		report.TCP:    {{Mbps: 12, UpMbps: 12, Short1MB: 1}, {Mbps: 12, UpMbps: 12, Short1MB: 1}},
	}}}}
	if got := r.Row(cell.String()).shares(report.Direct); !slices.Equal(got, []float64{0.6, 0.8}) {
		t.Errorf("shares %v", got)
	}
	if f := figure([]float64{0.6, 0.8}); math.Abs(f.Mean-0.7) > 1e-9 || math.Abs(f.Error-0.1) > 1e-9 {
		t.Errorf("%v", f)
	}
	lines := r.Summary(cells)
	if len(lines) != 2 || !strings.Contains(lines[0], "1 links 0.700 ± 0.100") || !strings.Contains(lines[0], "steady 20") ||
		!strings.Contains(lines[1], "1.000 ± 0.000") || !strings.Contains(lines[1], "1 MB on lossy links 0.50 x") {
		t.Errorf("%s", strings.Join(lines, "\n"))
	}
}

const shortRate = 10 * mbit
