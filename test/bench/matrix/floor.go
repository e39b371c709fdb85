package matrix

import (
	"fmt"
	"strings"
	"time"

	"edgemesh/test/bench/report"
)

// Floor is what the project requires of a cell.
type Floor struct {
	Share     float64       // of bare BBR, at least
	Ping      time.Duration // added to the idle one, 99th percentile, at most
	VoiceLost float64       // share of datagrams above that of the link, at most; 0: not required
	Jitter    time.Duration // of datagrams, at most
	Transfer  float64       // time for 1 MB to that of the Reference, at most; 0: not required
}

const thinMost = 2 * mbit

// Floor is the one of the cell's kind, of several the lowest.
func (c Cell) Floor() Floor {
	f := Floor{Share: 0.85, Ping: 40 * time.Millisecond}
	ease := func(is bool, share float64, ping time.Duration) {
		if is {
			f.Share, f.Ping = min(f.Share, share), max(f.Ping, ping)
		}
	}
	ease(c.Rate.Down <= thinMost, 0.85, 150*time.Millisecond)
	ease(c.Loss >= 0.03, 0.75, 50*time.Millisecond)
	ease(c.Reorder > 0, 0.65, 60*time.Millisecond)
	ease(c.Rate.Up <= thinMost && c.Rate.Up < c.Rate.Down && c.Load == BothDirections, 0.7, 0)
	ease(c.Varies != "", 0.75, 150*time.Millisecond)
	if c.Load == Voice && c.Rate.Down >= thinMost {
		f.VoiceLost, f.Jitter = 0.005, 15*time.Millisecond
	}
	if c.Loss == 0 && c.Reorder == 0 && c.Varies == "" {
		f.Transfer = 1.1
	}
	return f
}

// misses says what of the floor the row does not hold, nothing if all of it, or if it was not measured.
func (f Floor) misses(c Cell, row *Row) (what []string) {
	miss := func(is bool, format string, args ...any) {
		if is {
			what = append(what, fmt.Sprintf(format, args...))
		}
	}
	own := func(value func(Round) float64) float64 { v, _ := row.Median(report.Direct, value); return v }
	millis := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	if share, ok := Share(row, report.Direct); ok {
		miss(share < f.Share, "share %.2f of %.2f", share, f.Share)
	}
	ping := func(r Round) float64 { return r.Ping99Ms - r.IdleMs }
	bare, _ := row.Median(BareBBR, ping)
	miss(own(ping) > millis(f.Ping), "ping %.0f of %.0f ms (bare BBR %.0f)", own(ping), millis(f.Ping), bare)
	if f.VoiceLost > 0 {
		link, _ := row.Median(BareBBR, func(r Round) float64 { return r.VoiceLost })
		link = max(link, c.Loss)
		lost := own(func(r Round) float64 { return r.VoiceLost })
		miss(lost > link+f.VoiceLost, "datagrams lost %.1f of %.1f %%", 100*lost, 100*(link+f.VoiceLost))
		jitter := own(func(r Round) float64 { return r.VoiceJitter })
		miss(jitter > millis(f.Jitter), "jitter %.0f of %.0f ms", jitter, millis(f.Jitter))
	}
	large := func(r Round) float64 { return r.Short1MB }
	if reference, ok := row.Median(report.Reference, large); ok && reference > 0 && f.Transfer > 0 {
		took := own(large) / reference
		miss(took > f.Transfer, "1 MB in %.2f of %.2f × %s", took, f.Transfer, report.Reference)
	}
	return what
}

// floors is the page's part on what is required.
func (r *Results) floors() string {
	var b strings.Builder
	measured, held := 0, 0
	for _, c := range Cells() {
		for _, row := range r.Rows {
			if row.Cell != c.String() || len(row.Rounds[report.Direct]) == 0 {
				continue
			}
			measured++
			what := c.Floor().misses(c, row)
			if len(what) == 0 {
				held++
				continue
			}
			fmt.Fprintf(&b, "| %s | %s |\n", row.Cell, strings.Join(what, "; "))
		}
	}
	head := fmt.Sprintf("## What is required\n\n%d of %d links hold all that is required of their kind", held, measured)
	if held == measured {
		return head + ".\n\n"
	}
	return head + "; these do not:\n\n| link | measured, of what is required |\n|---|---|\n" + b.String() + "\n"
}
