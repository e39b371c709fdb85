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
		"Rounds: %s, of which each square is the median; the carriers take turns. A turn in which the host gave much of the\n"+
		"machine to others is repeated.\n"+
		"One download with cubic inside (eight with \"8 flows\"); bare: without a tunnel. `make bench-link` repeats it.\n\n",
		r.Taken.Format("2006-01-02"), r.Machine, r.Took, r.rounds())
	for _, m := range Maps() {
		fmt.Fprintf(&b, "![%s](%s)\n\n", m.Title, m.File)
	}
	b.WriteString(r.floors())
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
