package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"edgemesh/test/bench/report"
	"edgemesh/test/lab"
)

// bench is one run.
type bench struct {
	plan   plan
	bin    string // directory of the binaries
	before string // that of another version
	root   string // of the repository
	log    *progress
	stage  *stage // the carriers of the clean path, when a part has made them
}

// stage is a lab with carriers that are ready.
type stage struct {
	lab      *lab.Lab
	carriers []*carrier
}

// run measures the parts and hands each over when it is done. A part that fails
// does not keep the others from being measured; the error names all that failed.
func (b *bench) run(ctx context.Context, parts []string, done func(string, *report.Part) error) error {
	defer b.strike()
	machine, err := b.machine(ctx)
	if err != nil {
		return err
	}
	total := time.Duration(0)
	for _, name := range parts {
		total += b.plan.lasts(name)
	}
	b.log.printf("%d parts, about %s", len(parts), total.Round(time.Second))
	var errs []error
	for _, name := range parts {
		if ctx.Err() != nil {
			break
		}
		b.log.printf("%s: about %s", name, b.plan.lasts(name).Round(time.Second))
		start := time.Now()
		p := &report.Part{
			Taken:   start.UTC().Truncate(time.Second),
			Rounds:  b.plan.rounds,
			Flow:    b.plan.flow,
			Machine: machine,
		}
		if err := b.part(name)(ctx, p); err != nil {
			b.log.printf("%s: failed, see the end", name)
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		p.Took = time.Since(start).Round(time.Second)
		if err := done(name, p); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (b *bench) part(name string) func(context.Context, *report.Part) error {
	return map[string]func(context.Context, *report.Part) error{
		report.Clean: b.clean, report.Packets: b.packets, report.Requests: b.requests, report.Link: b.link, report.LAN: b.lan, report.Edge: b.edge, report.Hub: b.hub,
		report.Idle: b.idle, report.Egress: b.egress, report.Code: b.code,
	}[name]
}

// inLab runs f in a lab of its own. An error has the last lines of its logs.
func (b *bench) inLab(ctx context.Context, o lab.Options, f func(*lab.Lab) error) (err error) {
	l, err := b.newLab(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(explain(ctx, l, err), l.Close()) }()
	return f(l)
}

func (b *bench) newLab(o lab.Options) (*lab.Lab, error) {
	o.Bin = b.bin
	l, err := lab.New(o)
	if errors.Is(err, lab.ErrNotRoot) {
		return nil, errors.New("network namespaces need root. Try: sudo make bench")
	}
	if err != nil {
		return nil, err
	}
	l.Cluster.Encryption = "always" // the carriers compared are encrypted
	return l, nil
}

// explain adds the logs to an error that is not an interruption.
func explain(ctx context.Context, l *lab.Lab, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("%w\n%s", err, l.Logs(8))
}

// onStage runs f with the carriers of the clean path, which parts share.
func (b *bench) onStage(ctx context.Context, f func([]*carrier) error) error {
	if b.stage == nil {
		l, err := b.newLab(lab.Options{})
		if err != nil {
			return err
		}
		carriers, err := b.setUpAll(ctx, l, underlay{}, b.plan.carriers)
		if err != nil {
			return errors.Join(explain(ctx, l, err), l.Close())
		}
		b.stage = &stage{l, carriers}
	}
	if err := f(b.stage.carriers); err != nil {
		return errors.Join(explain(ctx, b.stage.lab, err), b.strike())
	}
	return nil
}

// try measures one carrier's round, a second time if the first fails, as when the
// load generator's own control connection got lost. Where the plan can do without
// the carrier, it has no values then. The round returns the share of the machine that
// something else used.
func (b *bench) try(ctx context.Context, p *report.Part, row *report.Row, what string, f func(context.Context, *report.Row) (float64, error)) error {
	var err error
	for range 2 {
		var round report.Row
		var others float64
		if others, err = f(ctx, &round); err == nil {
			row.Merge(round)
			p.Others = max(p.Others, others)
			return nil
		}
		if ctx.Err() != nil {
			break
		}
		b.log.printf("%s: %v", what, err)
	}
	if ctx.Err() == nil && slices.Contains(b.plan.mayFail, what) {
		return nil
	}
	return fmt.Errorf("measure %s: %w", what, err)
}

// strike takes the stage down.
func (b *bench) strike() error {
	if b.stage == nil {
		return nil
	}
	defer func() { b.stage = nil }()
	return b.stage.lab.Close()
}

func (b *bench) setUpAll(ctx context.Context, l *lab.Lab, u underlay, names []string) ([]*carrier, error) {
	var carriers []*carrier
	for _, name := range names {
		c, err := setUp(ctx, l, u, b.bin, b.before, name)
		if err == nil {
			err = c.ready(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("set up %s: %w", name, err)
		}
		b.log.printf("%s is ready", name)
		carriers = append(carriers, c)
	}
	return carriers, nil
}
