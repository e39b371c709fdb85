package main

import (
	"context"
	"time"

	"edgemesh/test/bench/report"
	"edgemesh/test/lab"
)

// lan measures the paths between nodes on one LAN that need no tunnel, beside what
// they are made of.
func (b *bench) lan(ctx context.Context, p *report.Part) error {
	if err := b.strike(); err != nil {
		return err
	}
	return b.inLab(ctx, lab.Options{}, func(l *lab.Lab) error {
		l.Cluster.Encryption = "auto"
		site, err := l.AddSite("site", lab.EIM)
		if err != nil {
			return err
		}
		carriers, err := b.setUpAll(ctx, l, underlay{site: site}, lanCarriers())
		if err != nil {
			return err
		}
		for _, c := range carriers {
			if row := p.At(c.name, 0); c.pathAfter > 0 {
				row.Add(report.PathAfter, c.pathAfter.Seconds())
			}
		}
		if err := b.cleanRounds(ctx, p, carriers); err != nil {
			return err
		}
		return b.answerTurns(ctx, p, carriers)
	})
}

// answerTime is the time of asking within one turn.
const answerTime = 150 * time.Millisecond

// answerTurns requests 1-byte answers in many short turns: what else the machine does in
// one of them makes a difference as large as that between the paths.
func (b *bench) answerTurns(ctx context.Context, p *report.Part, carriers []*carrier) error {
	for range b.plan.rounds * b.plan.turns {
		for _, c := range carriers {
			row := p.At(c.name, 0)
			if err := b.try(ctx, p, row, c.name, func(ctx context.Context, turn *report.Row) (float64, error) {
				us, err := c.answers(ctx, "tcp", answerTime)
				turn.Add(report.AnswerTCP, us)
				return 0, err
			}); err != nil {
				return err
			}
		}
	}
	return nil
}
