package matrix

import (
	"fmt"
	"math"
	"strings"
	"time"

	"edgemesh/test/lab/link"
)

// Rate is a line's, in bit/s, as the node behind it sees it.
type Rate struct{ Down, Up int64 }

// Load is what crosses the link.
type Load string

// All loads measure one download with cubic, or eight.
const (
	OneFlow        Load = "1 flow"
	EightFlows     Load = "8 flows"
	BothDirections Load = "upload beside" // one upload beside the download
	Voice          Load = "voice beside"  // 200 kbit/s of datagrams, downwards
)

// Cell is one link with one load.
type Cell struct {
	Rate    Rate
	Delay   time.Duration // one way
	Queue   time.Duration // of the router, at the line's rate, each direction
	Loss    float64       // share, each direction
	Reorder float64       // share, each direction
	Varies  Variation     // of the rate, from second to second
	Load    Load
}

const (
	reorderBy = 5 * time.Millisecond
	// windowBytes is what TCP's default windows let be in flight, with room for the queue's share.
	windowBytes = 3 << 20
	// roundTrips is how many a flow lasts at least.
	roundTrips = 20
	// varyBy is how much a varying rate changes, up or down, as a share.
	varyBy = 0.6
)

// fits says that TCP's default windows are no limit.
func (c Cell) fits() bool {
	return float64(c.Rate.Down)/8*2*c.Delay.Seconds() <= windowBytes
}

// Lasts is how long one flow runs, whole seconds.
func (c Cell) Lasts(least time.Duration) time.Duration {
	return max(least, roundTrips*2*c.Delay).Truncate(time.Second)
}

// Link is the link with its rates multiplied by share, 1 for the link as it is.
func (c Cell) Link(share float64) link.Config {
	direction := func(rate int64) link.Direction {
		d := link.Direction{Rate: int64(float64(rate) * share), Delay: c.Delay, Loss: c.Loss, Reorder: c.Reorder}
		if c.Reorder > 0 {
			d.ReorderBy = reorderBy
		}
		// The router's memory does not change with the rate.
		d.Queue = max(2*1514, int64(float64(rate)/8*c.Queue.Seconds()))
		return d
	}
	return link.Config{Up: direction(c.Rate.Up), Down: direction(c.Rate.Down)}
}

// String names the cell: "20/2 Mbit/s, 25 ms, queue 500 ms, 1 % lost, 2 % reordered, varying, 8 flows".
func (c Cell) String() string {
	words := []string{c.Rate.String() + " Mbit/s", ms(c.Delay), "queue " + ms(c.Queue)}
	if c.Loss > 0 {
		words = append(words, fmt.Sprintf("%.3g %% lost", 100*c.Loss))
	}
	if c.Reorder > 0 {
		words = append(words, fmt.Sprintf("%.3g %% reordered", 100*c.Reorder))
	}
	if c.Varies != "" {
		words = append(words, string(c.Varies))
	}
	return strings.Join(append(words, string(c.Load)), ", ")
}

// String is the rate in Mbit/s, down/up where they differ.
func (r Rate) String() string {
	down := fmt.Sprintf("%g", float64(r.Down)/1e6)
	if r.Up == r.Down {
		return down
	}
	return fmt.Sprintf("%s/%g", down, float64(r.Up)/1e6)
}

func ms(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// Variation is how a rate changes from second to second.
type Variation string

// Variations, "" among them: it stays. The last two are of drawn links only.
const (
	Varying Variation = "varying" // every second, by up to 60 %
	Fading  Variation = "fading"  // down to .3 and back in eight seconds, as behind a hill
	Falling Variation = "falling" // to a third after a third of the time, and back after two, as where a cell is shared
)

// Shares are the factors of the rate, one for each second, the same in every run.
func (v Variation) Shares(seconds int) []float64 {
	shares := make([]float64, seconds)
	x := uint32(1)
	for i := range shares {
		switch v {
		case Varying:
			x = x*1664525 + 1013904223 // Numerical Recipes' generator; a phone's rate needs no better one
			shares[i] = 1 - varyBy + 2*varyBy*float64(x>>8)/float64(1<<24)
		case Fading:
			shares[i] = 0.65 + 0.35*math.Cos(float64(i)*math.Pi/4)
		case Falling:
			shares[i] = 1
			if 3*i >= seconds && 3*i < 2*seconds {
				shares[i] = 1.0 / 3
			}
		default:
			shares[i] = 1
		}
	}
	return shares
}
