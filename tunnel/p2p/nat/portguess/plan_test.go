package portguess

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func sized(n int) Range { return Range{Low: MinPort, High: uint16(MinPort + n - 1)} }

func all() Range { return Range{Low: MinPort, High: math.MaxUint16} }

// The odds are those of a simulated NAT, and good for every range.
func TestOdds(t *testing.T) {
	for _, r := range []Range{all(), sized(20000), sized(2048), sized(64)} {
		p := Plan{hard: r}
		const rounds = 300
		met := 0
		for range rounds {
			mappings := make(map[uint16]bool)
			for range p.Sockets() {
				mappings[r.Low+uint16(rand.IntN(r.Size()))] = true
			}
			for _, port := range p.Guesses() {
				if mappings[port] {
					met++
					break
				}
			}
		}
		if got := float64(met) / rounds; p.Odds(true) < 0.999 || math.Abs(got-p.Odds(true)) > 0.01 {
			t.Errorf("%v: met in %.3f, want %.4f", r, got, p.Odds(true))
		}
	}
}

// Whatever a peer says, an attempt is bounded in packets and time, and guesses are different ports of the range.
func TestBounds(t *testing.T) {
	for _, r := range []Range{{}, {1, 1}, {65535, 65535}, {1, 65535}, {9, 3}, sized(3), sized(2049), all()} {
		p := Plan{hard: r}
		for less := range maxLess + 1 {
			l := Plan{r, less}
			if l.Lasts() != p.Lasts() || l.ProbeAfter() != p.ProbeAfter() || l.Probes() > max(MaxProbes>>less, minProbes) || l.Rate() > Rate>>less {
				t.Errorf("%v: halved %d times: %d probes at %d a second, in %v", r, less, l.Probes(), l.Rate(), l.Lasts())
			}
			if n := l.Sockets(); n < minSockets || n > max(Sockets>>less, minSockets) || n > p.Sockets() {
				t.Errorf("%v: halved %d times: %d sockets", r, less, n)
			}
		}
		if p.Probes() > MaxProbes || p.Lasts() > 15*time.Second || p.ProbeAfter() < Sockets*time.Second/Rate {
			t.Errorf("%v: %d probes after %v, ends after %v", r, p.Probes(), p.ProbeAfter(), p.Lasts())
		}
		seen := make(map[uint16]bool)
		for _, port := range p.Guesses() {
			if port < r.Low || port > r.High || seen[port] {
				t.Errorf("port %d of %v: outside, or twice", port, r)
			}
			seen[port] = true
		}
		if len(seen) != p.Probes() {
			t.Errorf("%v: %d guesses, want %d", r, len(seen), p.Probes())
		}
	}
}

func TestSeen(t *testing.T) {
	for _, r := range []Range{sized(64), {40000, 40511}, sized(4096), all()} {
		covered := 0.0
		const rounds = 200
		for range rounds {
			var ports []uint16
			for _, i := range rand.Perm(r.Size())[:Samples] {
				ports = append(ports, r.Low+uint16(i))
			}
			got := Seen(ports)
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

// A carrier's small block of ports is not used up: few sockets have the same odds there.
func TestFewSocketsInFewPorts(t *testing.T) {
	for size, most := range map[int]int{256: minSockets, 2048: minSockets, 4096: 32, math.MaxUint16 - MinPort + 1: Sockets} {
		p := Plan{hard: sized(size)}
		if n := p.Sockets(); n > most || p.Odds(true) < enough {
			t.Errorf("%d ports: %d sockets, odds %.5f; want at most %d", size, n, p.Odds(true), most)
		}
	}
}
