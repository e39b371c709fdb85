package main

import (
	"context"

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
			if row := p.At(c.name, 0); c.settled > 0 {
				row.Add(report.PathAfter, c.settled.Seconds())
			}
		}
		return b.cleanRounds(ctx, p, carriers)
	})
}
