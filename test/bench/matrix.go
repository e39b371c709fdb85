package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"time"

	"edgemesh/test/bench/matrix"
	"edgemesh/test/bench/report"
	"edgemesh/test/lab"
	"edgemesh/test/lab/link"
)

const (
	voiceRate = "200k" // bit/s of payload
	voiceSize = 500    // bytes: a datagram each 20 ms
	// matrixFlow is how long a flow lasts where round trips are short.
	matrixFlow = 8 * time.Second
	// idlePings are sent before each flow.
	idlePings = 20
	// Half of warmTime, or of as many round trips as a flow has: what our connections have carried of a link before they are
	// measured.
	warmTime = 8 * time.Second
	// forgetTime is how long BBR believes the shortest round trip it has seen (bbr_min_rtt_win_sec of net/ipv4/tcp_bbr.c).
	forgetTime = 11 * time.Second
	// shortFrom is the rate from which on a transfer of 1 MB is short.
	shortFrom = 10_000_000
	// mostStolen is how much of this machine the host may give to others in a turn.
	mostStolen = 0.08
	// drainTime lets the router's queue of the last turn drain.
	drainTime = 1500 * time.Millisecond
)

// matrixPlan is what is measured.
type matrixPlan struct {
	cells    []matrix.Cell
	carriers []string
	rounds   int
	repeats  int // of a turn in which others had much of the machine, at most
	flow     time.Duration
	out      string // directory, empty to print only
}

// choose keeps the cells whose names match.
func choose(cells []matrix.Cell, expression string) ([]matrix.Cell, error) {
	re, err := regexp.Compile(expression)
	if err != nil {
		return nil, fmt.Errorf("-cells: %w", err)
	}
	cells = slices.DeleteFunc(cells, func(c matrix.Cell) bool { return !re.MatchString(c.String()) })
	if len(cells) == 0 {
		return nil, fmt.Errorf("-cells: no cell matches %q", expression)
	}
	return cells, nil
}

// lasts is about how long it takes.
func (p matrixPlan) lasts() (d time.Duration) {
	for _, c := range p.cells {
		turn := c.Lasts(p.flow) + idlePings*pingInterval + 4*c.Delay + drainTime + time.Second
		d += turn * time.Duration(p.rounds*len(p.carriers))
	}
	return d
}

// turn is one carrier as the matrix knows it.
type turn struct {
	*carrier
	name  string
	delay time.Duration // of its link now
}

// run measures all cells, carriers turn by turn.
func (p matrixPlan) run(ctx context.Context, b *bench) error {
	machine, err := b.machine(ctx)
	if err != nil {
		return err
	}
	r := matrix.Results{
		Taken: time.Now().UTC().Truncate(time.Second), Carriers: p.carriers,
		Machine: fmt.Sprintf("%d cores, %s, %s %s", machine.Cores, machine.CPU, report.Reference, machine.Versions[report.Reference]),
	}
	b.log.printf("%d cells, %d rounds, about %s", len(p.cells), p.rounds, p.lasts().Round(time.Second))
	start := time.Now()
	for _, cell := range p.cells {
		r.Row(cell.String()) // in this order, whichever is measured first
	}
	for round := range p.rounds { // by new connections: after the short round trips of the last round long ones follow
		err = b.inLab(ctx, lab.Options{}, func(l *lab.Lab) error { return p.round(ctx, b, l, round, &r, start) })
		if err != nil {
			break
		}
	}
	fmt.Printf("\n%s", r.Markdown())
	return err
}

// round measures all cells once.
func (p matrixPlan) round(ctx context.Context, b *bench, l *lab.Lab, round int, r *matrix.Results, start time.Time) error {
	// Longest delays first: a shorter round trip is learned immediately, a longer one after forgetTime. So is a lower
	// rate; BBR finds a higher one by a quarter in eight round trips.
	order := slices.SortedStableFunc(slices.Values(p.cells), func(a, b matrix.Cell) int {
		return cmp.Or(cmp.Compare(b.Delay, a.Delay), cmp.Compare(b.Rate.Down, a.Rate.Down))
	})
	turns, err := p.turns(ctx, b, l, order[0].Delay)
	if err != nil {
		return err
	}
	for i, cell := range order {
		for _, t := range turns {
			m, err := p.try(ctx, b.log, cell, t)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", cell, t.name, err)
			}
			row := r.Row(cell.String())
			row.Rounds[t.name] = append(row.Rounds[t.name], m)
			share, _ := matrix.Share(row, t.name)
			b.log.printf("round %d of %d, cell %d of %d: %s: %s: %.2f Mbit/s (%.2f), ping +%.0f ms, p99 +%.0f ms",
				round+1, p.rounds, i+1, len(order), cell, t.name, m.Mbps, share, m.PingMs-m.IdleMs, m.Ping99Ms-m.IdleMs)
		}
		r.Took = time.Since(start).Round(time.Second)
		if p.out != "" {
			if err := r.Write(p.out); err != nil {
				return err
			}
		}
	}
	return nil
}

// turns sets the carriers up: the bare link is one, with two kinds of flows.
func (p matrixPlan) turns(ctx context.Context, b *bench, l *lab.Lab, delay time.Duration) ([]*turn, error) {
	names := make([]string, 0, len(p.carriers))
	for _, name := range p.carriers {
		if name == matrix.BareBBR || name == matrix.BareCubic {
			name = veth
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	easy := link.Both(link.Direction{Rate: 100_000_000, QueueTime: 50 * time.Millisecond, Delay: delay})
	carriers, err := b.setUpAll(ctx, l, underlay{link: &easy}, names)
	if err != nil {
		return nil, err
	}
	var turns []*turn
	for _, name := range p.carriers {
		i := slices.IndexFunc(carriers, func(c *carrier) bool { return c.name == name })
		if i < 0 {
			i = slices.Index(names, veth)
		}
		c := *carriers[i]
		c.congestion = linkCongestion
		if name == matrix.BareBBR {
			c.congestion = "bbr"
		}
		turns = append(turns, &turn{&c, name, delay})
	}
	return turns, nil
}

// try measures a second time what fails, as when the load generator's own connection got lost, and what was measured while
// others had much of the machine. Of those the one in which they had least is kept.
func (p matrixPlan) try(ctx context.Context, log *progress, cell matrix.Cell, t *turn) (best matrix.Round, err error) {
	for left, failed := p.repeats, false; ; {
		var m matrix.Round
		stolen, err := stolenWhile(func() (err error) { m, err = t.cell(ctx, cell, p.flow); return err })
		if err != nil {
			if failed || ctx.Err() != nil {
				return m, err
			}
			failed = true
			log.printf("%s: %s: %v", cell, t.name, err)
			continue
		}
		m.Stolen = math.Round(1000*stolen) / 1000
		if best.Mbps == 0 || m.Stolen < best.Stolen {
			best = m
		}
		if m.Stolen <= mostStolen || left == 0 {
			return best, nil
		}
		left--
		log.printf("%s: %s: repeated, as others had %.0f %% of the machine; %.2f Mbit/s", cell, t.name, 100*m.Stolen, m.Mbps)
	}
}

// cell measures one turn.
func (t *turn) cell(ctx context.Context, cell matrix.Cell, least time.Duration) (m matrix.Round, err error) {
	d := cell.Lasts(least)
	ctx, cancel := context.WithTimeout(ctx, 3*d+3*setUpTime)
	defer cancel()
	if err := t.link.Set(ctx, cell.Link(1)); err != nil {
		return m, err
	}
	if t.path != nil { // its connections live on from cell to cell: they learn the new link before
		if cell.Delay > t.delay {
			time.Sleep(forgetTime)
		}
		t.delay = cell.Delay
		if _, err := t.tcp(ctx, cell.Lasts(warmTime)/2, "-R"); err != nil {
			return m, err
		}
	}
	time.Sleep(drainTime)
	idle, err := t.ping(ctx, idlePings)
	if err != nil {
		return m, err
	}
	m.IdleMs = report.Quantile(idle, 0.5)
	if cell.Loss == 0 && cell.Reorder == 0 && !cell.Varies {
		if m.Short100KB, err = t.short(ctx, 100_000); err != nil {
			return m, err
		}
		if cell.Rate.Down < shortFrom {
			// It is the line's time.
		} else if m.Short1MB, err = t.short(ctx, 1_000_000); err != nil {
			return m, err
		}
	}
	if err := t.load(ctx, cell, d, &m); err != nil {
		return m, err
	}
	if t.path != nil {
		m.CarrierState, err = t.path(ctx)
	}
	return m, err
}

// load runs everything that the cell has side by side.
func (t *turn) load(ctx context.Context, cell matrix.Cell, d time.Duration, m *matrix.Round) error {
	var jobs []func(context.Context) error
	flows := 1
	switch cell.Load {
	case matrix.EightFlows:
		flows = 8
	case matrix.BothWays:
		jobs = append(jobs, func(ctx context.Context) (err error) {
			m.UpMbps, err = t.tcp(ctx, d, "-p", strconv.Itoa(streamPort))
			return err
		})
	case matrix.Voice:
		jobs = append(jobs, func(ctx context.Context) error {
			s, err := t.voice(ctx, d)
			m.VoiceLost, m.VoiceJitter = s.lost, s.jitter
			return err
		})
	}
	if cell.Varies {
		jobs = append(jobs, func(ctx context.Context) error { return t.vary(ctx, cell, d) })
	}
	jobs = append(jobs,
		func(ctx context.Context) (err error) {
			m.Mbps, err = t.tcp(ctx, d, "-R", "-P", strconv.Itoa(flows))
			return err
		},
		func(ctx context.Context) error {
			begun := 5*pingInterval + 4*cell.Delay
			time.Sleep(begun)
			beside, err := t.ping(ctx, max(1, int((d-begun)/pingInterval)-5))
			m.PingMs, m.Ping99Ms = report.Quantile(beside, 0.5), report.Quantile(beside, 0.99)
			return err
		})
	errs := make(chan error, len(jobs))
	for _, job := range jobs {
		go func() { errs <- job(ctx) }()
	}
	var err error
	for range jobs {
		err = errors.Join(err, <-errs)
	}
	return err
}

// tcp runs flows and returns what arrived, in Mbit/s.
func (t *turn) tcp(ctx context.Context, d time.Duration, args ...string) (float64, error) {
	var r struct {
		End struct {
			Received struct {
				Rate float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	err := iperf(ctx, t.client, t.server, &r, append(args, "-t", strconv.Itoa(int(d.Seconds())), "-C", t.congestion)...)
	return r.End.Received.Rate / 1e6, err
}

// voice sends datagrams downwards.
func (t *turn) voice(ctx context.Context, d time.Duration) (stream, error) {
	return t.udp(ctx, "-R", "-b", voiceRate, "-l", strconv.Itoa(voiceSize), "-t", strconv.Itoa(int(d.Seconds())))
}

// vary changes the rate each second.
func (t *turn) vary(ctx context.Context, cell matrix.Cell, d time.Duration) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for _, share := range matrix.Shares(int(d.Seconds())) {
		if err := t.link.Set(ctx, cell.Link(share)); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return t.link.Set(ctx, cell.Link(1))
}

// short is how long a transfer takes, in ms.
func (t *turn) short(ctx context.Context, bytes int) (float64, error) {
	var r struct {
		Seconds float64 `json:"seconds"`
	}
	err := t.client.Tool(ctx, &r, "bulk", "--pull", "--bytes", strconv.Itoa(bytes), t.server.IP4().String())
	return r.Seconds * 1000, err
}
