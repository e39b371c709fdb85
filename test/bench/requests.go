package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"edgemesh/test/bench/report"
)

const (
	parallelRequests = 64
	smallPacket      = 64 // bytes of payload
)

// requests measures small requests and small datagrams, as many as there can be, turn by turn.
func (b *bench) requests(ctx context.Context, p *report.Part) error {
	return b.onStage(ctx, func(carriers []*carrier) error {
		for round := range b.plan.rounds {
			for _, c := range carriers {
				if !slices.Contains(b.plan.linkCarriers, c.name) { // with all a full run takes longer than is promised
					continue
				}
				row := p.At(c.name, 0)
				if err := b.try(ctx, p, row, c.name, func(ctx context.Context, round *report.Row) (float64, error) {
					return 0, c.requestsRound(ctx, b.plan.requests, round)
				}); err != nil {
					return err
				}
				b.log.printf("round %d of %d  %-17s %6.1f thousand requests/s, %5.1f with connections, %6.1f thousand small datagrams/s",
					round+1, b.plan.rounds, c.name, last(row, report.Kept), last(row, report.New), last(row, report.SmallRate))
			}
		}
		return nil
	})
}

// requestsRound measures one carrier once, each for d.
func (c *carrier) requestsRound(ctx context.Context, d time.Duration, row *report.Row) error {
	for _, m := range []report.Metric{report.Kept, report.New} {
		rate, err := c.requestRate(ctx, d, m == report.New)
		if err != nil {
			return err
		}
		row.Add(m, rate/1000)
	}
	size, err := socketBuffer()
	if err != nil {
		return err
	}
	s, err := c.datagrams(ctx, smallPacket, "0", size, d, max(3*d, slowControl))
	if err != nil {
		return err
	}
	row.Add(report.SmallRate, s.packets*(1-s.lost)/s.seconds/1000)
	return nil
}

// requestRate is how many small HTTP requests are answered in a second.
func (c *carrier) requestRate(ctx context.Context, d time.Duration, connections bool) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, d+setUpTime)
	defer cancel()
	var r struct {
		Count   int     `json:"count"`
		Failed  int     `json:"failed"`
		Seconds float64 `json:"seconds"`
	}
	if err := c.client.Tool(ctx, &r, "requests", "--parallel", fmt.Sprint(parallelRequests), fmt.Sprintf("--new=%t", connections),
		"--duration", d.String(), c.server.IP4().String()); err != nil {
		return 0, err
	}
	if r.Count == 0 || r.Failed > 0 {
		return 0, fmt.Errorf("requests: %d answered, %d failed", r.Count, r.Failed)
	}
	return float64(r.Count) / r.Seconds, nil
}
