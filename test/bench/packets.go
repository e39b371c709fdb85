package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"edgemesh/test/lab"
)

const (
	packetSize = 1200 // bytes of payload
	// The search is between these rates, packets per second, in steps that halve the ratio of
	// what is known to pass and what is known not to.
	packetsLeast, packetsMost = 10_000, 640_000
	packetSteps               = 7
	packetTime                = 2 * time.Second // of one step
	// packetLoss is the share that counts as none: what a busy machine's receiver
	// drops because it is not run in time.
	packetLoss = 0.001
	// packetShort is the share of the wanted rate that has to be sent; less says that
	// the sender is at its end.
	packetShort  = 0.97
	packetBuffer = "4M"
)

// burst is what a steady stream of datagrams at one rate came to.
type burst struct {
	pps  float64 // sent
	lost float64 // share
	cpu  float64 // machine's CPU seconds per million packets
}

// passes says that nothing to speak of was lost.
func (b burst) passes() bool { return b.lost <= packetLoss }

// runPackets looks for the highest rate of datagrams without loss, turn by turn.
func runPackets(ctx context.Context, out io.Writer, l *lab.Lab, o options) error {
	carriers, err := setUpAll(ctx, l, underlay{}, o)
	if err != nil {
		return err
	}
	best := make([][]burst, len(carriers))
	for _, c := range carriers {
		if err := c.serveStream(); err != nil {
			return err
		}
	}
	for round := range o.rounds {
		for i, c := range carriers {
			b, err := c.packetRate(ctx)
			if err != nil {
				return fmt.Errorf("measure %s: %w", c.name, err)
			}
			fmt.Fprintf(out, "round %d of %d  %-13s %7.1f thousand packets/s, %.2f %% lost, %.1f CPU-s per million\n",
				round+1, o.rounds, c.name, b.pps/1000, 100*b.lost, b.cpu)
			best[i] = append(best[i], b)
		}
	}
	return packetTable(out, carriers, best)
}

// packetRate searches for the highest rate that passes.
func (c *carrier) packetRate(ctx context.Context) (best burst, err error) {
	low, high := float64(packetsLeast), float64(packetsMost)
	for range packetSteps {
		want := math.Sqrt(low * high)
		b, err := c.burst(ctx, want)
		if err != nil {
			return best, err
		}
		if b.passes() && b.pps > best.pps {
			best = b
		}
		if b.passes() && b.pps > packetShort*want {
			low = want
		} else {
			high = want
		}
	}
	return best, nil
}

// burst sends datagrams at one rate.
func (c *carrier) burst(ctx context.Context, pps float64) (b burst, err error) {
	ctx, cancel := context.WithTimeout(ctx, packetTime+setUpTime)
	defer cancel()
	before, err := machineCPU()
	if err != nil {
		return b, err
	}
	step, stop := context.WithTimeout(ctx, 3*packetTime)
	out, err := c.client.Run(step, "iperf3", "-c", c.server.IP4().String(), "-p", strconv.Itoa(streamPort), "-J", "-u",
		"-b", strconv.Itoa(int(pps*packetSize*8)), "-l", strconv.Itoa(packetSize), "-w", packetBuffer,
		"-t", strconv.Itoa(int(packetTime.Seconds())))
	stop()
	if err != nil && ctx.Err() == nil { // its first or last packet got lost
		return burst{lost: 1}, nil
	}
	if err != nil {
		return b, err
	}
	after, err := machineCPU()
	if err != nil {
		return b, err
	}
	var report struct {
		End struct {
			Sum struct {
				Seconds float64 `json:"seconds"`
				Packets float64 `json:"packets"`
				Lost    float64 `json:"lost_packets"`
			} `json:"sum"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return b, fmt.Errorf("iperf3: %w: %s", err, out)
	}
	s := report.End.Sum
	if s.Packets == 0 || s.Seconds == 0 {
		return b, errors.New("iperf3: no packet was sent")
	}
	return burst{pps: s.Packets / s.Seconds, lost: s.Lost / s.Packets, cpu: (after - before) / s.Packets * 1e6}, nil
}

// packetTable prints the medians over the rounds.
func packetTable(out io.Writer, carriers []*carrier, best [][]burst) error {
	rate := func(i int) []float64 {
		var v []float64
		for _, b := range best[i] {
			v = append(v, b.pps/1000)
		}
		return v
	}
	ref := slices.IndexFunc(carriers, func(c *carrier) bool { return c.name == reference })
	fmt.Fprintf(out, "\nDatagrams of %d bytes from pod to pod without loss (at most %.1f %%), medians, all turn by turn.\n\n", packetSize, 100*packetLoss)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "carrier\tthousand packets/s\tmin–max\t× "+reference+"\tCPU-s per million\t")
	for i, c := range carriers {
		against := "–"
		if ref >= 0 {
			against = fmt.Sprintf("%.2f", median(rate(i))/median(rate(ref)))
		}
		var cpu []float64
		for _, b := range best[i] {
			cpu = append(cpu, b.cpu)
		}
		fmt.Fprintf(w, "%s\t%.1f\t%.1f–%.1f\t%s\t%.1f\t\n", c.name, median(rate(i)), slices.Min(rate(i)), slices.Max(rate(i)), against, median(cpu))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	return nil
}
