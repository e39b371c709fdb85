// Command bench measures one bulk TCP flow from pod to pod over several carriers
// on one machine, turn by turn in one run: routes over plain veth, kernel VXLAN,
// wireguard-go, and the agents of this project on a direct path. Nodes, pods and
// underlay are alike for all: the pods are made by our plugin and their packets
// are forwarded by the node with connection tracking. `make bench` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"edgemesh/test/lab"
)

const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

type options struct {
	rounds   int
	duration time.Duration // of one flow; iperf3 takes whole seconds
	carriers []string
	bin      string // folder of all binaries
	link     bool   // over a slow, long and lossy link
	packets  bool   // the rate of datagrams instead of a flow
}

func main() {
	o := options{}
	flag.IntVar(&o.rounds, "rounds", 3, "how often each carrier is measured")
	flag.DurationVar(&o.duration, "time", 4*time.Second, "duration of one flow, whole seconds")
	names := flag.String("carriers", "", "which carriers, and in which order (default "+strings.Join(carrierNames(), ",")+"; with -link "+strings.Join(linkCarriers, ",")+")")
	flag.BoolVar(&o.link, "link", false, "over a link of "+linkText+" and losses of 0, 1 and 3 %")
	flag.BoolVar(&o.packets, "packets", false, fmt.Sprintf("the highest rate of %d-byte datagrams without loss instead of a flow", packetSize))
	flag.StringVar(&o.bin, "bin", "", "folder of the binaries (default bin/ of the repository)")
	flag.Parse()
	switch {
	case *names != "":
		o.carriers = strings.Split(*names, ",")
	case o.link:
		o.carriers = linkCarriers
	default:
		o.carriers = carrierNames()
	}
	if err := o.check(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(exitUsage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, o)
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

func (o options) check() error {
	if o.rounds < 1 || o.duration < time.Second {
		return errors.New("at least one round of one second")
	}
	if o.link && o.packets {
		return errors.New("-link and -packets exclude each other")
	}
	for _, name := range o.carriers {
		if !slices.Contains(carrierNames(), name) {
			return fmt.Errorf("no carrier %q: choose from %s", name, strings.Join(carrierNames(), ", "))
		}
	}
	return nil
}

// run sets all carriers up, measures them in turn and prints the table.
func run(ctx context.Context, out io.Writer, o options) (err error) {
	if o.bin == "" {
		root, err := lab.RepoRoot()
		if err != nil {
			return err
		}
		o.bin = filepath.Join(root, "bin")
	}
	l, err := lab.New(lab.Options{Bin: o.bin})
	if errors.Is(err, lab.ErrNotRoot) {
		return errors.New("network namespaces need root. Try: sudo make bench")
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w\n%s", err, l.Logs(15))
		}
		err = errors.Join(err, l.Close())
	}()

	switch {
	case o.link:
		return runLink(ctx, out, l, o)
	case o.packets:
		return runPackets(ctx, out, l, o)
	}
	carriers, err := setUpAll(ctx, l, underlay{}, o)
	if err != nil {
		return err
	}
	for round := range o.rounds {
		for _, c := range carriers {
			fmt.Fprintf(out, "round %d of %d  %-13s", round+1, o.rounds, c.name)
			s, err := c.measure(ctx, o.duration)
			if err != nil {
				fmt.Fprintln(out)
				return fmt.Errorf("measure %s: %w", c.name, err)
			}
			fmt.Fprintf(out, "%6.2f Gbit/s  %s\n", s.gbps, s.path)
			c.samples = append(c.samples, s)
		}
	}
	fmt.Fprintln(out)
	return table(out, carriers, o)
}

func setUpAll(ctx context.Context, l *lab.Lab, u underlay, o options) ([]*carrier, error) {
	var carriers []*carrier
	for _, name := range o.carriers {
		c, err := setUp(ctx, l, u, o.bin, name)
		if err != nil {
			return nil, fmt.Errorf("set up %s: %w", name, err)
		}
		if err := c.ready(ctx); err != nil {
			return nil, fmt.Errorf("set up %s: %w", name, err)
		}
		carriers = append(carriers, c)
	}
	return carriers, nil
}
