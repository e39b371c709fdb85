package matrix

import (
	"testing"
	"time"
)

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
	for _, s := range Shares(100) {
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
