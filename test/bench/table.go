package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

const (
	reference = "wireguard-go"
	// quietMachine is the share of CPU time that bystanders may use.
	quietMachine = 0.1
)

// table prints the medians over the rounds.
func table(out io.Writer, carriers []*carrier, o options) error {
	var ref *carrier
	for _, c := range carriers {
		if c.name == reference {
			ref = c
		}
	}
	fmt.Fprintf(out, "One TCP flow from pod to pod, %d × %s, medians, all carriers turn by turn. CPU in seconds per 10^9 bytes:\n"+
		"tunnel = its processes at both ends; ends = these and iperf3; machine = everything that ran. Ping in ms.\n\n", o.rounds, o.duration)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "carrier\tGbit/s\tmin–max\t× "+reference+"\ttunnel\tends\tmachine\tping idle\tunder load p50\tp99\tlost\tpath\t")
	for _, c := range carriers {
		rates := c.values(func(s sample) float64 { return s.gbps })
		fmt.Fprintf(w, "%s\t%.2f\t%.2f–%.2f\t%s\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%d\t%s\t\n", c.name,
			median(rates), slices.Min(rates), slices.Max(rates), c.against(ref),
			median(c.values(func(s sample) float64 { return s.tunnelCPU })),
			median(c.values(func(s sample) float64 { return s.endsCPU })),
			median(c.values(func(s sample) float64 { return s.machineCPU })),
			median(c.values(func(s sample) float64 { return quantile(s.idle, 0.5) })),
			median(c.values(func(s sample) float64 { return quantile(s.load, 0.5) })),
			median(c.values(func(s sample) float64 { return quantile(s.load, 0.99) })),
			c.lost(), c.samples[len(c.samples)-1].path)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	if busy := worstOthers(carriers); busy > quietMachine {
		fmt.Fprintf(out, "\nBeware: something else used up to %.0f %% of the machine meanwhile; the ratios suffer least.\n", busy*100)
	}
	return nil
}

func worstOthers(carriers []*carrier) (worst float64) {
	for _, c := range carriers {
		for _, s := range c.samples {
			worst = max(worst, s.others)
		}
	}
	return worst
}

func (c *carrier) values(f func(sample) float64) []float64 {
	var v []float64
	for _, s := range c.samples {
		v = append(v, f(s))
	}
	return v
}

// against is the median of the rounds' ratios of throughput: what disturbs the
// machine for a while disturbs both.
func (c *carrier) against(ref *carrier) string {
	if ref == nil {
		return "–"
	}
	var ratios []float64
	for i := range c.samples {
		ratios = append(ratios, c.samples[i].gbps/ref.samples[i].gbps)
	}
	return fmt.Sprintf("%.2f", median(ratios))
}

func (c *carrier) lost() (n int) {
	for _, s := range c.samples {
		n += s.lost
	}
	return n
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return quantile(v, 0.5)
}

// quantile of sorted values, 0 of none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}
