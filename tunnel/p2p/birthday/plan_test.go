package birthday

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func sized(n int) Range { return Range{Low: MinPort, High: uint16(MinPort + n - 1)} }

var all = Range{Low: MinPort, High: math.MaxUint16}

func TestOdds(t *testing.T) {
	for _, c := range []struct {
		name           string
		opener, prober Range
		want           float64
		worth          bool
	}{
		{"any port, known port", all, Range{4001, 4001}, 0.9997, true},
		{"any port, known low port", all, Range{443, 443}, 0.9997, true},
		{"any port, any port", all, all, 0.001, false},
		{"any port, block of 1024", all, sized(1024), 0.0615, true},
		{"block of 1024, any port", sized(1024), all, 0.0313, true},
		{"blocks of 2048", sized(2048), sized(2048), 0.632, true},
		{"blocks of 512", sized(512), sized(512), 0.982, true},
		{"blocks of 64", sized(64), sized(64), 1, true},
		{"known port, known port", Range{4001, 4001}, Range{4001, 4001}, 1, false},
		{"unknown", Range{}, sized(64), 0, false},
		{"backwards", Range{5000, 4000}, sized(64), 0, false},
		{"ports of servers", Range{1, 300}, sized(64), 1, false},
		{"prober at ports of servers", sized(64), Range{1, 300}, 0.9989, false},
	} {
		p := New(c.opener, c.prober)
		if got := p.Odds(); math.Abs(got-c.want) > 0.001 {
			t.Errorf("%s: odds %.4f, want %.4f", c.name, got, c.want)
		}
		if p.Worth() != c.worth {
			t.Errorf("%s: worth %v, want %v", c.name, p.Worth(), c.worth)
		}
	}
}

// The odds are those of a simulated pair of NATs.
func TestOddsAreTrue(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct{ opener, prober Range }{{sized(2048), sized(2048)}, {sized(1024), sized(1024)},
		{all, sized(256)}, {sized(20000), Range{4001, 4001}}} {
		p := New(c.opener, c.prober)
		const rounds = 100
		met := 0
		for range rounds {
			mappings := make(map[[2]uint16]bool)
			for range Sockets {
				for _, q := range p.Targets(rnd) {
					mappings[[2]uint16{c.opener.Low + uint16(rnd.IntN(c.opener.Size())), q}] = true
				}
			}
			for _, port := range p.Guesses(rnd) {
				if mappings[[2]uint16{port, c.prober.Low + uint16(rnd.IntN(c.prober.Size()))}] {
					met++
					break
				}
			}
		}
		sigma := math.Sqrt(p.Odds() * (1 - p.Odds()) / rounds)
		if got := float64(met) / rounds; math.Abs(got-p.Odds()) > 4*sigma+0.01 {
			t.Errorf("%v, %v: met in %.3f, want %.3f", c.opener, c.prober, got, p.Odds())
		}
	}
}

// Whatever a peer says, an attempt is bounded in packets and time, and guesses are
// different ports of the range.
func TestBounds(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	ranges := []Range{{}, {1, 1}, {65535, 65535}, {1, 65535}, {9, 3}, sized(3), sized(2049), all}
	for _, a := range ranges {
		for _, b := range ranges {
			p := New(a, b)
			if p.Each()*Sockets > 2048 || p.Probes() > 2048 || p.Lasts() > 15*time.Second {
				t.Errorf("%v, %v: %d openers, %d probes, %v", a, b, p.Each()*Sockets, p.Probes(), p.Lasts())
			}
			if want := time.Duration(p.Each()*Sockets) * time.Second / Rate; p.ProbeAfter() < want {
				t.Errorf("%v, %v: probes after %v, openers take %v", a, b, p.ProbeAfter(), want)
			}
			for r, ports := range map[Range][]uint16{a: p.Guesses(rnd), b: p.Targets(rnd)} {
				seen := make(map[uint16]bool)
				for _, port := range ports {
					if port < r.Low || port > r.High || seen[port] {
						t.Errorf("port %d of %v: outside, or twice", port, r)
					}
					seen[port] = true
				}
			}
		}
	}
}

func TestSeen(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	for _, r := range []Range{sized(64), {40000, 40511}, sized(4096), all} {
		covered := 0.0
		const rounds = 200
		for range rounds {
			got := Seen(draw(r, Samples, rnd))
			if got.Size() == 0 || got.Size() > 3*r.Size()/2 || got.Low < MinPort {
				t.Fatalf("%v seen as %v", r, got)
			}
			covered += float64(min(int(got.High), int(r.High))-max(int(got.Low), int(r.Low))+1) / float64(r.Size()) / rounds
		}
		if covered < 0.93 {
			t.Errorf("%v: %.2f of it is guessed", r, covered)
		}
	}
	if got := Seen([]uint16{4000, 5000}); got.Size() != 0 {
		t.Errorf("two ports show %v", got)
	}
}
