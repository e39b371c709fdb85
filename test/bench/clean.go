package main

import (
	"context"
	"errors"
	"math"
	"time"

	"edgemesh/test/bench/report"
)

// pingInterval is that of pings, idle and under load.
const pingInterval = 50 * time.Millisecond

// clean measures the carriers over a clean underlay.
func (b *bench) clean(ctx context.Context, p *report.Part) error {
	return b.onStage(ctx, func(carriers []*carrier) error { return b.cleanRounds(ctx, p, carriers) })
}

// cleanRounds measures carriers turn by turn.
func (b *bench) cleanRounds(ctx context.Context, p *report.Part, carriers []*carrier) error {
	for round := range b.plan.rounds {
		for _, c := range carriers {
			row := p.At(c.name, 0)
			if err := b.try(ctx, p, row, c.name, func(ctx context.Context, round *report.Row) (float64, error) {
				return c.cleanRound(ctx, b.plan, round)
			}); err != nil {
				return err
			}
			b.log.printf("round %d of %d  %-17s %6.2f Gbit/s, 4 flows %6.2f, %5.2f CPU-s/GB, answer %4.0f µs  %s",
				round+1, b.plan.rounds, c.name, last(row, report.FlowGbps), last(row, report.FourGbps),
				last(row, report.MachineCPU), last(row, report.AnswerTCP), row.Path)
		}
	}
	return nil
}

// last is the last value, not a number where there is none.
func last(r *report.Row, m report.Metric) float64 {
	if n := len(r.Values[m]); n > 0 {
		return r.Values[m][n-1]
	}
	return math.NaN()
}

// cleanRound measures one carrier once. It also returns the share of the machine
// that something else used before the flow.
func (c *carrier) cleanRound(ctx context.Context, p plan, row *report.Row) (others float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 4*p.flow+4*p.answers+3*setUpTime)
	defer cancel()
	if err := resetPeaks(c.tunnel); err != nil {
		return 0, err
	}
	if others, err = c.flowWithPings(ctx, p.flow, p.pings, row, report.FlowGbps, 1e9); err != nil {
		return others, err
	}
	tcp, err := c.answers(ctx, "tcp", p.answers)
	if err != nil {
		return others, err
	}
	udp, err := c.answers(ctx, "udp", p.answers)
	if err != nil {
		return others, err
	}
	row.Add(report.AnswerTCP, tcp)
	row.Add(report.AnswerUDP, udp)
	four, err := c.flow(ctx, p.flow, 4)
	if err != nil {
		return others, err
	}
	row.Add(report.FourGbps, four.rate()/1e9)
	if len(c.tunnel) > 0 {
		peak, err := peakMB(c.tunnel)
		if err != nil {
			return others, err
		}
		row.Add(report.PeakMB, peak)
	}
	if c.path != nil {
		row.Path, err = c.path(ctx)
	}
	return others, err
}

// flowWithPings runs one flow from client to server, with a ping before and beside
// it, and enters its rate, in units of bit/s, and what it costs.
func (c *carrier) flowWithPings(ctx context.Context, d time.Duration, idle int, row *report.Row, rate report.Metric, unit float64) (others float64, err error) {
	var before []float64
	if others, err = busyWhile(func() error {
		before, err = c.ping(ctx, idle)
		return err
	}); err != nil {
		return others, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	count := max(1, int(d/pingInterval)-10) // they end before the flow does
	var beside []float64
	ended := make(chan error, 1)
	go func() {
		select {
		case <-time.After(5 * pingInterval): // the flow has begun
		case <-ctx.Done():
		}
		var err error
		beside, err = c.ping(ctx, count)
		ended <- err
	}()
	used, f, err := c.costOf(func() (flow, error) { return c.flow(ctx, d, 1) })
	if err != nil {
		cancel()
		return others, errors.Join(err, <-ended)
	}
	if err := <-ended; err != nil {
		return others, err
	}
	row.Add(rate, f.rate()/unit)
	if f.second > 0 {
		row.Add(report.Second, f.second/1e6)
	}
	row.Add(report.MachineCPU, used.machine/(f.bytes/1e9))
	row.Add(report.TunnelCPU, used.tunnel/(f.bytes/1e9))
	row.Add(report.PingIdle, report.Quantile(before, 0.5))
	row.Add(report.PingLoad, report.Quantile(beside, 0.5))
	row.Add(report.PingLoad99, report.Quantile(beside, 0.99))
	row.Add(report.PingMax, report.Quantile(beside, 1))
	row.Add(report.PingLost, float64(count-len(beside))/float64(count))
	return others, nil
}
