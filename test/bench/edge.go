package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"edgemesh/test/bench/report"
	"edgemesh/test/lab"
	"edgemesh/test/lab/link"
)

const (
	edgePing     = 20 * time.Millisecond // between small packets of each end
	edgePingSize = 132                   // bytes of payload, 160 with headers
)

// edgeRows are what pods do meanwhile, in Mbit/s of one paced flow: nothing, small packets in both directions, and flows.
func edgeRows() []float64 { return []float64{0, report.EdgePings, 5, 20, 100} }

// edge measures what programs spend at the rates of an edge, carriers and rates turn by turn.
func (b *bench) edge(ctx context.Context, p *report.Part) error {
	p.Flow = b.plan.edgeFlow
	return b.overLink(ctx, b.plan.edgeCarriers, func(carriers []*carrier, _ link.Direction) error {
		for round := range b.plan.rounds {
			for _, x := range edgeRows() {
				for _, c := range carriers {
					row := p.At(c.name, x)
					if err := b.try(ctx, p, row, c.name, func(ctx context.Context, round *report.Row) (float64, error) {
						return 0, c.edgeRound(ctx, b.plan.edgeFlow, x, round)
					}); err != nil {
						return err
					}
					b.log.printf("round %d of %d  %4g Mbit/s  %-15s %6.2f Mbit/s, %6.1f ms/s, %6.1f CPU-s/GB, %6.0f switches/s, %6.0f frames/s", round+1,
						b.plan.rounds, x, c.name, last(row, report.FlowMbps), last(row, report.TunnelMs), last(row, report.TunnelCPU),
						last(row, report.Switches), last(row, report.Frames))
				}
			}
		}
		return nil
	})
}

// edgeUse is what was used so far: CPU seconds and voluntary switches of the carrier's processes, frames on the link.
type edgeUse struct{ cpu, switches, frames float64 }

func (c *carrier) edgeUse(ctx context.Context) (u edgeUse, err error) {
	used, err := c.readCPU()
	if err != nil {
		return u, err
	}
	u.cpu = used.tunnel
	for _, p := range c.tunnel {
		n, err := switches(p.PID())
		if err != nil {
			return u, err
		}
		u.switches += n
	}
	s, err := c.link.Stats(ctx)
	u.frames = float64(s.Up.Out + s.Down.Out)
	return u, err
}

// switches sums voluntary_ctxt_switches of a process's threads, see proc_pid_status(5).
func switches(pid int) (sum float64, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(files) == 0 {
		return 0, errors.Join(err, fmt.Errorf("context switches: process %d has no threads", pid))
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		_, rest, _ := strings.Cut(string(b), "\nvoluntary_ctxt_switches:")
		rest, _, _ = strings.Cut(rest, "\n")
		n, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
		if err != nil {
			return 0, fmt.Errorf("context switches: %s: %w", f, err)
		}
		sum += n
	}
	return sum, nil
}

// edgeRound measures one carrier at one rate, once.
func (c *carrier) edgeRound(ctx context.Context, d time.Duration, x float64, row *report.Row) error {
	ctx, cancel := context.WithTimeout(ctx, 2*d+2*setUpTime)
	defer cancel()
	if x == 0 {
		if err := rest(ctx, 2*time.Second); err != nil { // what the row before began is over
			return err
		}
	}
	before, err := c.edgeUse(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	f, err := c.edgeLoad(ctx, d, x)
	if err != nil {
		return err
	}
	seconds := time.Since(start).Seconds()
	after, err := c.edgeUse(ctx)
	if err != nil {
		return err
	}
	row.Add(report.TunnelMs, (after.cpu-before.cpu)/seconds*1000)
	row.Add(report.Switches, (after.switches-before.switches)/seconds)
	row.Add(report.Frames, (after.frames-before.frames)/seconds)
	if f.bytes > 0 {
		row.Add(report.FlowMbps, f.rate()/1e6)
		row.Add(report.TunnelCPU, (after.cpu-before.cpu)/(f.bytes/1e9))
	}
	return nil
}

// edgeLoad has the pods do what x says for d.
func (c *carrier) edgeLoad(ctx context.Context, d time.Duration, x float64) (flow, error) {
	switch x {
	case 0:
		return flow{}, rest(ctx, d)
	case report.EdgePings:
		both := make(chan error, 2)
		for _, pair := range [][2]*lab.Pod{{c.client, c.server}, {c.server, c.client}} {
			go func() {
				_, err := pair[0].Run(ctx, "ping", "-n", "-q", "-i", strconv.FormatFloat(edgePing.Seconds(), 'f', -1, 64), "-s", strconv.Itoa(edgePingSize),
					"-c", strconv.Itoa(int(d/edgePing)), pair[1].IP4().String())
				both <- err
			}()
		}
		return flow{}, errors.Join(<-both, <-both)
	}
	return c.tcp(ctx, d, "-b", fmt.Sprintf("%gM", x))
}
