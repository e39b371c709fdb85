package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"sync"
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
	matrixFlow = 7 * time.Second
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
	// One part in repeatShare of the time is for turns that are repeated.
	repeatShare = 8
	// drainTime lets the router's queue of the last turn drain.
	drainTime = 1500 * time.Millisecond
	// mostFailures of a turn are repeated: of iperf3's first datagrams and their answers 6 % get lost where 3 % do.
	mostFailures = 3
)

// matrixPlan is what is measured.
type matrixPlan struct {
	cells    []matrix.Cell
	carriers []string
	rounds   int
	repeats  int // of a turn in which others had much of the machine, at most
	flow     time.Duration
	out      string // directory, empty to print only
	sources  string // what is measured with what: results of the same are continued
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

// slowMost is the fastest line, in bit/s, of which the machine has no work worth mentioning: two such links are measured
// side by side.
const slowMost = 10_000_000

// stages are the cells of a round, stage by stage; the groups of one are measured side by side, each in a lab of its own.
// Longest delays come first: a shorter round trip is learned immediately, a longer one after forgetTime. So is a lower
// rate; BBR finds a higher one by a quarter in eight round trips.
func (p matrixPlan) stages() [][][]matrix.Cell {
	order := slices.SortedStableFunc(slices.Values(p.cells), func(a, b matrix.Cell) int {
		return cmp.Or(cmp.Compare(b.Delay, a.Delay), cmp.Compare(b.Rate.Down, a.Rate.Down))
	})
	var slow [2][]matrix.Cell
	var took [2]time.Duration
	var fast []matrix.Cell
	for _, c := range order {
		if c.Rate.Down > slowMost {
			fast = append(fast, c)
			continue
		}
		i := 0
		if took[1] < took[0] {
			i = 1
		}
		slow[i] = append(slow[i], c)
		took[i] += p.lasts(c)
	}
	return [][][]matrix.Cell{slow[:], {fast}}
}

// lasts is about how long one round of a cell takes.
func (p matrixPlan) lasts(c matrix.Cell) time.Duration {
	turn := c.Lasts(p.flow) + idlePings*pingInterval + 4*c.Delay + drainTime + time.Second
	return turn*time.Duration(len(p.carriers)) + c.Lasts(warmTime)/2
}

// allLast is about how long everything takes.
func (p matrixPlan) allLast() (d time.Duration) {
	for _, groups := range p.stages() {
		var longest time.Duration
		for _, cells := range groups {
			var took time.Duration
			for _, c := range cells {
				took += p.lasts(c)
			}
			longest = max(longest, took)
		}
		d += longest * time.Duration(p.rounds)
	}
	return d
}

// turn is one carrier as the matrix knows it.
type turn struct {
	*carrier
	name  string
	delay time.Duration // of its link now
}

// matrixRun is a plan that is carried out.
type matrixRun struct {
	matrixPlan
	b     *bench
	start time.Time

	mu    sync.Mutex // guards what follows, and what is in -out
	r     matrix.Results
	spare time.Duration // for turns that are repeated
}

// run measures all cells, carriers turn by turn.
func (p matrixPlan) run(ctx context.Context, b *bench) error {
	machine, err := b.machine(ctx)
	if err != nil {
		return err
	}
	run := matrixRun{matrixPlan: p, b: b, start: time.Now(), spare: p.allLast() / repeatShare, r: matrix.Results{
		Taken: time.Now().UTC().Truncate(time.Second), Carriers: p.carriers, Sources: p.sources,
		Machine: fmt.Sprintf("%d cores, %s, %s %s", machine.Cores, machine.CPU, report.Reference, machine.Versions[report.Reference]),
	}}
	if p.out != "" {
		old, err := matrix.LoadResults(p.out)
		if err != nil {
			return err
		}
		run.r.Resume(old, p.rounds)
	}
	there := 0
	for _, cell := range p.cells {
		row := run.r.Row(cell.String()) // in this order, whichever is measured first
		there += len(row.Rounds[p.carriers[0]])
	}
	b.log.printf("%d cells, %d rounds, about %s; %d of %d turns are there", len(p.cells), p.rounds, p.allLast().Round(time.Second), there, p.rounds*len(p.cells))
	for round := range p.rounds {
		for _, groups := range p.stages() {
			if err = run.beside(ctx, round, groups); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	fmt.Printf("\n%s", run.r.Markdown())
	for _, line := range run.r.Summary(p.cells) {
		fmt.Println(line)
	}
	return err
}

// beside measures groups of cells side by side. New labs have new connections: after the short round trips of the last round
// long ones follow.
func (m *matrixRun) beside(ctx context.Context, round int, groups [][]matrix.Cell) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	groups = slices.DeleteFunc(groups, func(cells []matrix.Cell) bool {
		return !slices.ContainsFunc(cells, func(c matrix.Cell) bool { return !m.has(c, round) })
	})
	var ready, done sync.WaitGroup
	ready.Add(len(groups))
	for _, cells := range groups {
		done.Go(func() {
			isReady := sync.OnceFunc(ready.Done)
			err := m.b.inLab(ctx, lab.Options{}, func(l *lab.Lab) error {
				turns, err := m.turns(ctx, m.b, l, cells[0].Delay)
				isReady()
				if err != nil {
					return err
				}
				ready.Wait() // setting up takes processors from those who measure
				return m.round(ctx, turns, round, cells)
			})
			isReady()
			if err != nil {
				cancel(err) // the first one counts
			}
		})
	}
	done.Wait()
	return context.Cause(ctx)
}

// round measures cells once, in their order.
func (m *matrixRun) round(ctx context.Context, turns []*turn, round int, cells []matrix.Cell) error {
	for _, cell := range cells {
		if m.has(cell, round) {
			continue
		}
		for _, t := range turns {
			got, err := m.try(ctx, cell, t)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", cell, t.name, err)
			}
			if err := m.note(round, cell, t.name, got); err != nil {
				return err
			}
		}
	}
	return nil
}

// has says whether an earlier run measured this.
func (m *matrixRun) has(cell matrix.Cell, round int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.r.Row(cell.String()).Rounds[m.carriers[len(m.carriers)-1]]) > round
}

// note takes in what was measured.
func (m *matrixRun) note(round int, cell matrix.Cell, carrier string, got matrix.Round) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	row := m.r.Row(cell.String())
	row.Rounds[carrier] = append(row.Rounds[carrier], got)
	share, _ := matrix.Share(row, carrier)
	m.b.log.printf("round %d of %d: %s: %s: %.2f Mbit/s (%.2f), ping +%.0f ms, p99 +%.0f ms, voice lost %.1f %%",
		round+1, m.rounds, cell, carrier, got.Mbps, share, got.PingMs-got.IdleMs, got.Ping99Ms-got.IdleMs, 100*got.VoiceLost)
	m.r.Took = time.Since(m.start).Round(time.Second)
	if m.out == "" {
		return nil
	}
	return m.r.Write(m.out)
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

// try measures again what fails, as when the load generator's own connection or first datagram got lost, and what was measured
// while others had much of the machine. Of those the one in which they had least is kept.
func (m *matrixRun) try(ctx context.Context, cell matrix.Cell, t *turn) (best matrix.Round, err error) {
	for left, failed := m.repeats, 0; ; {
		var got matrix.Round
		start := time.Now()
		stolen, err := stolenWhile(func() (err error) { got, err = t.cell(ctx, cell, m.flow); return err })
		if err != nil {
			if failed++; failed > mostFailures || ctx.Err() != nil {
				return got, err
			}
			m.b.log.printf("%s: %s: %v", cell, t.name, err)
			continue
		}
		got.Stolen = math.Round(1000*stolen) / 1000
		if best.Mbps == 0 || got.Stolen < best.Stolen {
			best = got
		}
		if got.Stolen <= mostStolen || left == 0 || !m.mayRepeat(time.Since(start)) {
			return best, nil
		}
		left--
		m.b.log.printf("%s: %s: repeated, as others had %.0f %% of the machine; %.2f Mbit/s", cell, t.name, 100*got.Stolen, got.Mbps)
	}
}

// mayRepeat reports whether there is time for a turn that takes so long, and takes it.
func (m *matrixRun) mayRepeat(turn time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.spare < turn {
		return false
	}
	m.spare -= turn
	return true
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
		if err := t.warm(ctx, cell); err != nil {
			return m, err
		}
	}
	time.Sleep(drainTime)
	idle, err := t.ping(ctx, idlePings)
	if err != nil {
		return m, err
	}
	m.IdleMs = report.Quantile(idle, 0.5)
	if cell.Loss == 0 && cell.Reorder == 0 && cell.Varies == "" {
		if m.Short100KB, err = t.short(ctx, 100_000); err != nil {
			return m, err
		}
	}
	if cell.Rate.Down >= shortFrom { // else it is the line's time
		if m.Short1MB, err = t.short(ctx, 1_000_000); err != nil {
			return m, err
		}
	}
	before, err := t.timeouts(ctx)
	if err != nil {
		return m, err
	}
	if err := t.load(ctx, cell, d, &m); err != nil {
		return m, err
	}
	after, err := t.timeouts(ctx)
	if err != nil {
		return m, err
	}
	m.Timeouts, m.Spurious = after.all-before.all, after.spurious-before.spurious
	if t.path != nil {
		m.CarrierState, err = t.path(ctx)
	}
	return m, err
}
