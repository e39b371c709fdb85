package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"edgemesh/test/lab"
	"edgemesh/test/lab/link"
)

const (
	// linkText is the link in front of the client's node, both directions alike.
	linkText = "rate=100M queue=50ms delay=25ms"
	// linkCongestion is the congestion control of the flow inside, whatever the
	// machine's default is.
	linkCongestion = "cubic"
)

var (
	linkCarriers = []string{"veth", reference, edgemesh}
	linkLosses   = []float64{0, 0.01, 0.03} // shares, in both directions
)

// linkRow is one carrier at one loss.
type linkRow struct {
	carrier string
	loss    float64
	samples []sample
}

// runLink measures one cubic flow over a bad link, with a ping beside it and then
// with datagrams, all carriers and losses turn by turn.
func runLink(ctx context.Context, out io.Writer, l *lab.Lab, o options) error {
	d, err := link.Parse(linkText)
	if err != nil {
		return err
	}
	clean := link.Both(d)
	carriers, err := setUpAll(ctx, l, underlay{link: &clean}, o)
	if err != nil {
		return err
	}
	for _, c := range carriers {
		c.congestion = linkCongestion
		if err := c.serveStream(); err != nil {
			return err
		}
	}
	streams := make([][]stream, len(carriers))
	rows := make([]linkRow, 0, len(linkLosses)*len(carriers))
	for _, loss := range linkLosses {
		for _, c := range carriers {
			rows = append(rows, linkRow{carrier: c.name, loss: loss})
		}
	}
	for round := range o.rounds {
		for i := range rows {
			row, c := &rows[i], carriers[i%len(carriers)]
			d.Loss = row.loss
			if err := c.link.Set(ctx, link.Both(d)); err != nil {
				return fmt.Errorf("measure %s: %w", c.name, err)
			}
			fmt.Fprintf(out, "round %d of %d  %-13s %.0f %% loss", round+1, o.rounds, c.name, 100*row.loss)
			s, err := c.measure(ctx, o.duration)
			if err != nil {
				fmt.Fprintln(out)
				return fmt.Errorf("measure %s: %w", c.name, err)
			}
			fmt.Fprintf(out, "%8.1f Mbit/s  %s\n", 1000*s.gbps, s.path)
			row.samples = append(row.samples, s)
		}
		d.Loss = streamLoss
		for i, c := range carriers {
			if err := c.link.Set(ctx, link.Both(d)); err != nil {
				return fmt.Errorf("measure %s: %w", c.name, err)
			}
			s, err := c.measureStream(ctx, o.duration)
			if err != nil {
				return fmt.Errorf("measure datagrams over %s: %w", c.name, err)
			}
			fmt.Fprintf(out, "round %d of %d  %-13s %.0f %% loss, datagrams: %.1f %% lost, jitter %.1f ms\n",
				round+1, o.rounds, c.name, 100*streamLoss, s.lost, s.jitter)
			streams[i] = append(streams[i], s)
		}
	}
	fmt.Fprintln(out)
	if err := linkTable(out, rows, o); err != nil {
		return err
	}
	if err := streamTable(out, carriers, streams); err != nil {
		return err
	}
	return linkQuality(ctx, out, carriers)
}

// linkTable prints the medians over the rounds.
func linkTable(out io.Writer, rows []linkRow, o options) error {
	fmt.Fprintf(out, "One %s flow from pod to pod over a link of %s, %d × %s, medians, all turn by turn.\n"+
		"Ping round-trip times in ms; lost is of all pings under load, there and back.\n\n", linkCongestion, linkText, o.rounds, o.duration)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "loss\tcarrier\tMbit/s\tmin–max\tping idle p50\tunder load p50\tp99\tmax\tlost\tpath\t")
	var others float64
	for _, r := range rows {
		mbps := r.values(func(s sample) float64 { return 1000 * s.gbps })
		lost := 0
		for _, s := range r.samples {
			lost += s.lost
			others = max(others, s.others)
		}
		fmt.Fprintf(w, "%.0f %%\t%s\t%.1f\t%.1f–%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%d\t%s\t\n", 100*r.loss, r.carrier,
			median(mbps), slices.Min(mbps), slices.Max(mbps),
			median(r.values(func(s sample) float64 { return quantile(s.idle, 0.5) })),
			median(r.values(func(s sample) float64 { return quantile(s.load, 0.5) })),
			median(r.values(func(s sample) float64 { return quantile(s.load, 0.99) })),
			median(r.values(func(s sample) float64 { return quantile(s.load, 1) })),
			lost, r.samples[len(r.samples)-1].path)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	if others > quietMachine {
		fmt.Fprintf(out, "\nBeware: something else used up to %.0f %% of the machine meanwhile.\n", others*100)
	}
	return nil
}

// streamTable prints the medians over the rounds, of one row of streams for each
// carrier.
func streamTable(out io.Writer, carriers []*carrier, streams [][]stream) error {
	fmt.Fprintf(out, "\nDatagrams of %s bytes, %sbit/s, beside such a flow at %.0f %% loss, medians. Jitter in ms as in RFC 3550.\n\n",
		streamSize, streamRate, 100*streamLoss)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "carrier\tlost\tjitter\tthe flow's Mbit/s\t")
	for i, c := range carriers {
		m := func(f func(stream) float64) float64 {
			var v []float64
			for _, s := range streams[i] {
				v = append(v, f(s))
			}
			return median(v)
		}
		fmt.Fprintf(w, "%s\t%.2f %%\t%.2f\t%.1f\t\n", c.name, m(func(s stream) float64 { return s.lost }),
			m(func(s stream) float64 { return s.jitter }), m(func(s stream) float64 { return s.bulk }))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	return nil
}

func (r linkRow) values(f func(sample) float64) []float64 {
	v := make([]float64, len(r.samples))
	for i, s := range r.samples {
		v[i] = f(s)
	}
	return v
}

// linkQuality prints how well the emulator itself kept up.
func linkQuality(ctx context.Context, out io.Writer, carriers []*carrier) error {
	var frames, late, own uint64
	worst := 0.0
	for _, c := range carriers {
		s, err := c.link.Stats(ctx)
		if err != nil {
			return fmt.Errorf("emulator of %s: %w", c.name, err)
		}
		for _, d := range []link.DirectionStats{s.Up, s.Down} {
			frames, late, own = frames+d.Out, late+d.Late, own+d.Ring+d.Refused
			worst = max(worst, d.LateMaxMs)
		}
	}
	fmt.Fprintf(out, "\nThe emulator brought %.2f %% of %d frames more than 1 ms late (worst %.0f ms) and lost %d of its own.\n",
		100*float64(late)/float64(max(frames, 1)), frames, worst, own)
	return nil
}
