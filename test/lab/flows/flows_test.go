package flows

import (
	"math"
	"testing"
	"time"

	"edgemesh/test/lab/link"
)

// Bare flows share a line as real sockets do: means of the second after 5 s of 40, 30 Mbit/s and 50 ms of round trip, the second
// flow 5 s after the first. The figures are of Linux 6.18 over an emulated link, one run each.
func TestStrangersAreAsRealOnes(t *testing.T) {
	for _, c := range []struct {
		queue       time.Duration
		flows       []*Sender
		real        [2]float64
		differences float64 // Mbit/s
	}{
		{50, []*Sender{BBR(0), BBR(5)}, [2]float64{15.6, 12.5}, 9}, // the newcomer takes longer to find its share
		{50, []*Sender{BBR(0), Cubic(5)}, [2]float64{25.4, 2.6}, 3},
		{50, []*Sender{Cubic(0), BBR(5)}, [2]float64{2.9, 25.2}, 3},
		{50, []*Sender{Cubic(0), Cubic(5)}, [2]float64{16.3, 12.4}, 3},
		{500, []*Sender{BBR(0), BBR(5)}, [2]float64{14.2, 13.9}, 3},
		{500, []*Sender{BBR(0), Cubic(5)}, [2]float64{7.4, 20.8}, 3},
		{500, []*Sender{Cubic(0), BBR(5)}, [2]float64{17.9, 11.1}, 3},
		{500, []*Sender{Cubic(0), Cubic(5)}, [2]float64{25.0, 4.8}, 4},
	} {
		line := Line{Direction: link.Direction{Rate: 30e6, QueueTime: c.queue * time.Millisecond, Delay: 25 * time.Millisecond}}
		Run(line, 7, 40, 10, nil, c.flows...)
		for i, f := range c.flows {
			got := f.Mean(10) / 1e6
			t.Logf("queue %d ms, %s beside %s: %.1f Mbit/s, %.1f on sockets", c.queue, f.Name, c.flows[1-i].Name, got, c.real[i])
			if math.Abs(got-c.real[i]) > c.differences {
				t.Errorf("queue %d ms: %s beside %s has %.1f Mbit/s, %.1f on sockets", c.queue, f.Name, c.flows[1-i].Name, got, c.real[i])
			}
		}
	}
}

// What a line does besides link.Queue's own properties.
func TestLine(t *testing.T) {
	base := link.Direction{Rate: 10e6, QueueTime: 100 * time.Millisecond, Delay: 10 * time.Millisecond}
	run := func(l Line) (*Sender, Result) {
		s := BBR(0)
		return s, Run(l, 3, 10, 0, nil, s)
	}
	_, r := run(Line{Direction: base, Vary: func(now time.Duration) float64 {
		if now < 5*time.Second {
			return 0.2
		}
		return 1
	}})
	if math.Abs(r.Capacity-6e6) > 1e4 {
		t.Errorf("a line of 2 and 10 Mbit/s has a capacity of %.0f", r.Capacity)
	}
	if _, r = run(Line{Direction: base, Every: time.Second, Stall: 250 * time.Millisecond}); math.Abs(r.Capacity-7.5e6) > 1e4 {
		t.Errorf("a line that stalls a quarter of the time has a capacity of %.0f", r.Capacity)
	}
	whole, _ := run(Line{Direction: base})
	s, _ := run(Line{Direction: base, BurstLoss: 0.01, BurstLength: 8})
	lost := 0
	for _, p := range s.sent[:len(s.sent)-100] {
		if !p.received {
			lost++
		}
	}
	if share := float64(lost) / float64(len(s.sent)); share < 0.04 || share > 0.12 || whole.Mean(0) < 9e6 {
		t.Errorf("%.3f is lost in runs of 8 that one packet in a hundred begins; without, %.0f bit/s arrive", share, whole.Mean(0))
	}
	longer, r := run(Line{Direction: base, Longer: func(time.Duration) time.Duration { return 40 * time.Millisecond }})
	if c := longer.c.(*bbr); c.minRTT < 0.059 || r.P(.5) > 0.1 {
		t.Errorf("a path longer by 40 ms has a round trip of %v", c.minRTT)
	}
	bunched, _ := run(Line{Direction: base, Bunch: 40 * time.Millisecond})
	if bunched.Mean(0) < 7e6 {
		t.Errorf("arrivals in bunches: %.0f bit/s", bunched.Mean(0))
	}
}

// A run is the same again.
func TestRunsRepeat(t *testing.T) {
	run := func() float64 {
		s := Own(0)
		Run(Line{Direction: link.Direction{Rate: 20e6, QueueTime: 50 * time.Millisecond, Delay: 20 * time.Millisecond, Loss: 0.02}}, 5, 5, 0, nil, s, Cubic(1))
		return s.Mean(0)
	}
	if a, b := run(), run(); a != b || a < 1e6 {
		t.Errorf("%v, then %v", a, b)
	}
}
