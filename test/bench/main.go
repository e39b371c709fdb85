// Command bench measures what the pod network carries and costs, beside other
// carriers between the same nodes, turn by turn in one run: plain veth, kernel VXLAN,
// wireguard-go, Nebula, and the agents of this project on a direct path and
// through a relay. Nodes, pods and underlay are the same for all: the pods are made by
// our plugin and their packets are forwarded by the node with connection tracking.
// `make bench` runs it and writes results/.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"edgemesh/test/bench/matrix"
	"edgemesh/test/bench/report"
	"edgemesh/test/lab"
	"edgemesh/test/repo"
)

const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// options are the flags.
type options struct {
	plan   plan
	matrix *matrixPlan // instead of parts
	parts  []string
	bin    string // directory of all binaries
	before string // commit, for the carrier of that name
	out    string // directory of the report, empty to print it only
	page   string // page that shows the summary, empty for none
	render bool   // measure nothing, write the pages again
}

func main() {
	o, err := parseOptions(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(exitUsage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err = execute(ctx, o)
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case interrupted:
		fmt.Fprintln(os.Stderr, "\ninterrupted; everything has been removed")
		os.Exit(exitInterrupted)
	case err != nil:
		fmt.Fprintln(os.Stderr, "\nbench:", err)
		os.Exit(exitFailed)
	}
}

func parseOptions(args []string) (options, error) {
	o := options{plan: fullPlan()}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	parts := fs.String("parts", strings.Join(report.Parts(), ","), "what to measure")
	names := fs.String("carriers", "",
		"which carriers, in this order, where a part has several (default: the part's own); with -cells also "+strings.Join(matrix.MoreCarriers(), ", "))
	link := fs.Bool("link", false, "short for -parts "+report.Link)
	packets := fs.Bool("packets", false, "short for -parts "+report.Packets)
	cells := fs.String("cells", "", "measure links of every shape instead: those whose name matches this expression (. for all)")
	drawn := fs.Bool("drawn", false, "with -cells: of 40 links that are drawn by a fixed seed")
	always := fs.Bool("cells-always", false, "with -cells: only those that every choice has, once")
	short := fs.Bool("short", false, "everything once and briefly: whether it works, not how fast it is")
	rounds := fs.Int("rounds", 0, "how often everything is measured (default 3)")
	members := fs.Int("members", 0, "how many members the idle agent's cluster has (default 1000)")
	flow := fs.Duration("time", 0, "duration of one flow, whole seconds (default 4s; over the link 10s)")
	fs.StringVar(&o.bin, "bin", "", "directory of the binaries (default bin/ of the repository)")
	fs.StringVar(&o.before, "before", "86337bb", "commit that the carrier "+report.Before+" is of, built into a directory beside -bin's files")
	fs.StringVar(&o.out, "out", "", "directory for results.json and page; other parts that it has stay")
	fs.StringVar(&o.page, "page", "", "page that shows the summary between its marks; needs -out")
	fs.BoolVar(&o.render, "render", false, "measure nothing: write the page from results.json in -out")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if *short {
		o.plan = shortPlan()
	}
	o.plan.set(*rounds, *flow)
	o.plan.members = cmp.Or(*members, o.plan.members)
	if *names != "" {
		o.plan.carriers = strings.Split(*names, ",")
		o.plan.linkCarriers, o.plan.edgeCarriers = o.plan.carriers, o.plan.carriers
		o.plan.hubCarriers = slices.DeleteFunc(slices.Clone(o.plan.carriers), func(name string) bool { return ourPaths()[name] == "" })
	}
	if *cells != "" {
		return o, o.setMatrix(*cells, *always, *drawn, *rounds, *flow, *names)
	}
	o.parts = strings.Split(*parts, ",")
	if *link || *packets {
		o.parts = nil
	}
	if *link {
		o.parts = append(o.parts, report.Link)
	}
	if *packets {
		o.parts = append(o.parts, report.Packets)
	}
	return o, o.check()
}

// setMatrix plans links of every shape; 0 and "" leave the plan's own.
func (o *options) setMatrix(cells string, always, drawn bool, rounds int, flow time.Duration, carriers string) (err error) {
	p := matrixPlan{carriers: matrix.Carriers(), rounds: 3, repeats: 3, flow: matrixFlow, out: o.out}
	all := matrix.Cells()
	if drawn {
		all = matrix.Drawn()
	}
	if always {
		all, p.rounds, p.repeats = matrix.Always(), 1, 1
	}
	if p.cells, err = choose(all, cells); err != nil {
		return err
	}
	if rounds > 0 {
		p.rounds = rounds
	}
	if flow > 0 {
		p.flow = flow
	}
	if carriers != "" {
		p.carriers = strings.Split(carriers, ",")
	}
	for _, name := range p.carriers {
		if known := append(matrix.Carriers(), matrix.MoreCarriers()...); !slices.Contains(known, name) {
			return fmt.Errorf("-carriers: no carrier %q: choose from %s", name, strings.Join(known, ", "))
		}
	}
	o.matrix = &p
	return nil
}

func (o options) check() error {
	for _, p := range o.parts {
		if !slices.Contains(report.Parts(), p) {
			return fmt.Errorf("-parts: no part %q: choose from %s", p, strings.Join(report.Parts(), ", "))
		}
	}
	if o.page != "" && o.out == "" {
		return errors.New("-page needs -out: the page refers to what is there")
	}
	if o.render && o.out == "" {
		return errors.New("-render needs -out")
	}
	return o.plan.check()
}

// execute measures and writes the report, after each part, so that what was
// measured is not lost with what follows.
func execute(ctx context.Context, o options) error {
	all := report.Report{Parts: map[string]*report.Part{}}
	if o.out != "" && o.matrix == nil {
		var err error
		if all, err = report.Load(filepath.Join(o.out, report.DataFile)); err != nil {
			return err
		}
	}
	if o.render && o.matrix != nil {
		r, err := matrix.LoadResults(o.out)
		if err == nil && len(r.Rows) == 0 { // an empty page would take the place of one
			err = fmt.Errorf("-render: %s has no %s with links: measure first, without -render", o.out, matrix.DataFile)
		}
		if err != nil {
			return err
		}
		return r.Write(o.out)
	}
	if o.render {
		if err := all.Write(o.out); err != nil {
			return err
		}
		return embed(all, o)
	}
	root, err := repo.Root()
	if err != nil {
		return err
	}
	if o.bin == "" {
		o.bin = filepath.Join(root, "bin")
	}
	b := &bench{plan: o.plan, bin: o.bin, root: root, log: newProgress(os.Stdout)}
	if slices.Contains(o.plan.carriers, report.Before) || o.matrix != nil && slices.Contains(o.matrix.carriers, report.Before) {
		b.before = filepath.Join(o.bin, "before-"+o.before)
		if _, err := os.Stat(filepath.Join(b.before, "edgemesh-cni")); err != nil {
			b.log.printf("build %s", o.before)
			if err := lab.BuildCommit(ctx, o.before, b.before); err != nil {
				return fmt.Errorf("-before: %w", err)
			}
		}
	}
	if o.matrix != nil {
		if o.matrix.sources, err = sources(root); err != nil {
			return err
		}
		return o.matrix.run(ctx, b)
	}
	now := report.Report{Parts: map[string]*report.Part{}} // of this run alone
	runErr := b.run(ctx, o.parts, func(name string, p *report.Part) error {
		all.Parts[name], now.Parts[name] = p, p
		if o.out == "" {
			return nil
		}
		return all.Write(o.out)
	})
	fmt.Fprintf(os.Stdout, "\n%s", now.Markdown())
	return errors.Join(runErr, embed(all, o))
}

// embed shows the summary in the page, if there is one.
func embed(r report.Report, o options) error {
	if o.page == "" {
		return nil
	}
	dir, err := filepath.Rel(filepath.Dir(o.page), o.out)
	if err != nil {
		return fmt.Errorf("-page: %w", err)
	}
	return r.Embed(o.page, filepath.ToSlash(dir))
}

// progress prints lines with the time since the start.
type progress struct {
	out   *os.File
	start time.Time
}

func newProgress(out *os.File) *progress { return &progress{out: out, start: time.Now()} }

func (p *progress) printf(format string, args ...any) {
	since := time.Since(p.start)
	fmt.Fprintf(p.out, "[%2d:%02d] %s\n", int(since.Minutes()), int(since.Seconds())%60, fmt.Sprintf(format, args...))
}
