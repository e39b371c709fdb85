package matrix

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"edgemesh/test/bench/report"
)

// worst is how many cells the page names.
const worst = 8

// Markdown is the page.
func (r *Results) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Links of every shape\n\nTaken %s on %s, in %s.\n"+
		"Rounds: %s, of which each figure is the median; the carriers take turns. A turn in which the host gave much of the\n"+
		"machine to others is repeated.\n"+
		"One download with cubic inside (eight with \"8 flows\"); bare: without a tunnel. `make bench-link` repeats it.\n\n",
		r.Taken.Format("2006-01-02"), r.Machine, r.Took, r.rounds())
	b.WriteString(r.floors())
	r.all(&b)
	fmt.Fprintf(&b, "## Worst cells\n\n| link | share of bare BBR | ping p99 added, ms |\n|---|---|---|\n")
	rows := slices.Clone(r.Rows)
	share := func(row *Row) float64 { v, _ := Share(row, report.Direct); return v }
	slices.SortFunc(rows, func(a, b *Row) int { return cmp.Compare(share(a), share(b)) })
	for _, row := range rows[:min(worst, len(rows))] {
		ping, _ := row.Median(report.Direct, func(r Round) float64 { return r.Ping99Ms - r.IdleMs })
		fmt.Fprintf(&b, "| %s | %.2f | %.0f |\n", row.Cell, share(row), ping)
	}
	fmt.Fprintf(&b, "\n## Short transfers on an idle path, ms\n\n| link | %s, 100 kB | 1 MB | here, 100 kB | 1 MB |\n|---|---|---|---|---|\n", report.Reference)
	for _, row := range r.Rows {
		small := func(r Round) float64 { return r.Short100KB }
		large := func(r Round) float64 { return r.Short1MB }
		if v, ok := row.Median(report.Direct, small); !ok || v == 0 {
			continue
		}
		fmt.Fprintf(&b, "| %s ", row.Cell)
		for _, c := range []string{report.Reference, report.Direct} {
			s, _ := row.Median(c, small)
			l, _ := row.Median(c, large)
			fmt.Fprintf(&b, "| %s | %s ", measured(s), measured(l))
		}
		b.WriteString("|\n")
	}
	return b.String()
}

// all is the table of all links.
func (r *Results) all(b *strings.Builder) {
	fmt.Fprintf(b, "## All links\n\nShare of what flows with BBR carry on the bare link, of %s itself Mbit/s; pings beside the flow, added to the idle one,\n"+
		"ms: median / 99th percentile; datagrams of 200 kbit/s lost beside it.\n\n| link | %s |\n|---|%s\n",
		BareBBR, strings.Join(r.Carriers, " | "), strings.Repeat("---|", len(r.Carriers)))
	for _, row := range r.Rows {
		fmt.Fprintf(b, "| %s |", row.Cell)
		for _, c := range r.Carriers {
			if len(row.Rounds[c]) == 0 {
				b.WriteString(" – |")
				continue
			}
			of := func(value func(Round) float64) float64 { v, _ := row.Median(c, value); return v }
			text := "–"
			if share, ok := Share(row, c); ok {
				text = fmt.Sprintf("%.2f", share)
			}
			fmt.Fprintf(b, " %s; %.0f / %.0f", text,
				max(0, of(func(r Round) float64 { return r.PingMs - r.IdleMs })), max(0, of(func(r Round) float64 { return r.Ping99Ms - r.IdleMs })))
			if of(func(r Round) float64 { return r.VoiceJitter }) > 0 { // without datagrams there is none
				fmt.Fprintf(b, "; %.1f %%", 100*of(func(r Round) float64 { return r.VoiceLost }))
			}
			b.WriteString(" |")
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
}

// measured is a value, or a dash where there is none.
func measured(v float64) string {
	if v == 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f", v)
}

// rounds is how many there are: of links measured apart some may have fewer.
func (r *Results) rounds() string {
	least, most := 0, 0
	for _, row := range r.Rows {
		for _, rounds := range row.Rounds {
			n := len(rounds)
			if most = max(most, n); least == 0 || n < least {
				least = n
			}
		}
	}
	if least < most {
		return fmt.Sprintf("%d to %d", least, most)
	}
	return strconv.Itoa(most)
}
