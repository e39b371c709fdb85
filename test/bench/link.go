package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"edgemesh/test/bench/report"
	"edgemesh/test/lab"
	"edgemesh/test/lab/link"
)

const (
	// linkText is the link in front of the client's node, both directions the same.
	linkText = "rate=100M queue=50ms delay=25ms"
	// linkCongestion is the congestion control of the flow inside, whatever the
	// machine's default is.
	linkCongestion = "cubic"

	streamPort = 5202  // iperf3's usual port is the bulk flow's
	streamRate = "10M" // bit/s of payload
	// streamMargin is how much earlier the bulk flow begins and how much later it
	// ends.
	streamMargin = time.Second
)

// linkLosses are shares, in both directions.
func linkLosses() []float64 { return []float64{0, 0.01, 0.03} }

// overLink runs f with carriers over linkText, whose direction it hands over.
func (b *bench) overLink(ctx context.Context, names []string, f func(carriers []*carrier, d link.Direction) error) error {
	if err := b.strike(); err != nil { // its idle agents would be bystanders
		return err
	}
	return b.inLab(ctx, lab.Options{}, func(l *lab.Lab) error {
		d, err := link.Parse(linkText)
		if err != nil {
			return err
		}
		between := link.Both(d)
		carriers, err := b.setUpAll(ctx, l, underlay{link: &between}, names)
		if err != nil {
			return err
		}
		for _, c := range carriers {
			c.congestion = linkCongestion
		}
		return f(carriers, d)
	})
}

// link measures one cubic flow over a bad link, with a ping beside it and then
// with datagrams, all carriers and losses turn by turn.
func (b *bench) link(ctx context.Context, p *report.Part) error {
	p.Flow = b.plan.linkFlow
	return b.overLink(ctx, b.plan.linkCarriers, func(carriers []*carrier, d link.Direction) error {
		for round := range b.plan.rounds {
			for _, loss := range linkLosses() {
				for _, c := range carriers {
					d.Loss = loss
					row := p.At(c.name, loss)
					if err := b.try(ctx, p, row, c.name, func(ctx context.Context, round *report.Row) (float64, error) {
						return c.linkRound(ctx, b.plan, d, round)
					}); err != nil {
						return err
					}
					b.log.printf("round %d of %d  %.0f %% loss  %-13s %6.1f Mbit/s, ping p99 %6.1f ms  %s", round+1,
						b.plan.rounds, 100*loss, c.name, last(row, report.FlowMbps), last(row, report.PingLoad99),
						row.Path)
				}
			}
			d.Loss = report.StreamLoss
			for _, c := range carriers {
				row := p.At(c.name, report.StreamLoss)
				if err := b.try(ctx, p, row, c.name, func(ctx context.Context, round *report.Row) (float64, error) {
					return 0, c.streamRound(ctx, b.plan, d, round)
				}); err != nil {
					return err
				}
				b.log.printf("round %d of %d  %.0f %% loss  %-13s datagrams: %.2f %% lost, jitter %.1f ms", round+1,
					b.plan.rounds, 100*d.Loss, c.name, 100*last(row, report.StreamLost), last(row, report.Jitter))
			}
		}
		quality, err := linkQuality(ctx, carriers)
		p.Notes = append(p.Notes, quality)
		return err
	})
}

// linkRound measures one flow at one loss.
func (c *carrier) linkRound(ctx context.Context, p plan, d link.Direction, row *report.Row) (others float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*p.linkFlow+2*setUpTime)
	defer cancel()
	if err := c.link.Set(ctx, link.Both(d)); err != nil {
		return 0, err
	}
	others, err = c.flowWithPings(ctx, p.linkFlow, p.pings, row, report.FlowMbps, 1e6)
	if err == nil && c.path != nil {
		row.Path, err = c.path(ctx)
	}
	return others, err
}

// streamRound sends datagrams while a bulk flow runs.
func (c *carrier) streamRound(ctx context.Context, p plan, d link.Direction, row *report.Row) error {
	ctx, cancel := context.WithTimeout(ctx, 2*p.linkFlow+2*setUpTime)
	defer cancel()
	if err := c.link.Set(ctx, link.Both(d)); err != nil {
		return err
	}
	size, err := socketBuffer()
	if err != nil {
		return err
	}
	var bulk flow
	ended := make(chan error, 1)
	go func() {
		var err error
		bulk, err = c.flow(ctx, p.linkFlow+2*streamMargin, 1)
		ended <- err
	}()
	select {
	case <-time.After(streamMargin):
	case <-ctx.Done():
	}
	s, err := c.datagrams(ctx, packetSize, streamRate, size, p.linkFlow, p.linkFlow+setUpTime)
	if err := errors.Join(err, <-ended); err != nil {
		return err
	}
	row.Add(report.StreamLost, s.lost)
	row.Add(report.Jitter, s.jitter)
	row.Add(report.StreamFlow, bulk.rate()/1e6)
	return nil
}

// linkQuality says how well the emulator itself kept up.
func linkQuality(ctx context.Context, carriers []*carrier) (string, error) {
	var frames, late, own uint64
	worst := 0.0
	for _, c := range carriers {
		s, err := c.link.Stats(ctx)
		if err != nil {
			return "", fmt.Errorf("emulator of %s: %w", c.name, err)
		}
		for _, d := range []link.DirectionStats{s.Up, s.Down} {
			frames, late, own = frames+d.Out, late+d.Late, own+d.Ring+d.Refused
			worst = max(worst, d.LateMaxMs)
		}
	}
	return fmt.Sprintf("The emulator brought %.2f %% of %d frames more than 1 ms late (worst %.0f ms) and lost %d of its own.",
		100*float64(late)/float64(max(frames, 1)), frames, worst, own), nil
}
