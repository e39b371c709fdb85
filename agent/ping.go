package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"edgemesh/agent/control"
	"edgemesh/agent/view"
	"edgemesh/internal/cli"
	"edgemesh/internal/screen"
	"edgemesh/internal/wording"
)

const (
	// maxPings bounds --count so that a ping ends within its ten seconds.
	maxPings = 20
	// endlessEvery is the interval of --count 0, in milliseconds.
	endlessEvery = 1000
	// directTimeout is how long --until-direct waits unless --timeout says something else.
	directTimeout = 30 * time.Second
)

var (
	// errNoAnswer makes ping exit with 1 when every probe was lost.
	errNoAnswer = errors.New("no probe was answered")
	// errNotDirect makes ping --until-direct exit with 1.
	errNotDirect = errors.New("no path without a relay")
	// errDirect ends --until-direct.
	errDirect = errors.New("direct")
)

// pingCommand is one call of ping.
type pingCommand struct {
	clientFlags
	target      string
	count       int
	untilDirect bool
	timeline    bool
	timeout     time.Duration
}

func newPing() *cobra.Command {
	var p pingCommand
	c := &cobra.Command{
		Use:   "ping NODE|POD-IP",
		Short: "Probe a node over the path in use, or a pod through the data plane",
		Long: `Probe another member. Given a node's name, each probe is an authenticated echo
between the two agents over the path in use. Given a pod's IP, each probe is an ICMP
echo from this node to the pod, through bridge, tunnel and firewall. Each answer is a
line: round trip, path, transport and relay; at the end follows why the path is not a
better one. Ends within 10 s; exits with 1 if no probe was answered.

--count 0 probes once a second until interrupted; with --json, each line is then one
probe. --until-direct probes until the path is punched, direct, vxlan or native, that is no
relay's, and exits with 0; after --timeout it exits with 1.

--timeline adds the last first contact, when there was no path to the node: when each step
was done, here and there, and how long it waited for the one before. Each end has its own
clock. Between a request and its answer are the wires, the relay and the other end.`,
		Example: `  edgemesh-agent ping edge-2
  edgemesh-agent ping 10.244.2.7 --count 10 --json
  edgemesh-agent ping edge-2 --until-direct --timeout 1m
  edgemesh-agent ping edge-2 --count 1 --timeline`,
		Args: cli.Args("NODE|POD-IP"),
		RunE: func(c *cobra.Command, args []string) error {
			p.target = args[0]
			switch {
			case p.count < 0 || p.count > maxPings:
				return cli.Usage(fmt.Errorf("--count \"%d\": must be a whole number from 0 to %d; 0 runs until interrupted", p.count, maxPings))
			case p.untilDirect && c.Flags().Changed("count"):
				return cli.Usage(errors.New("--until-direct and --count exclude each other"))
			case p.timeline && (p.count == 0 || p.untilDirect):
				return cli.Usage(errors.New("--timeline is for a number of probes: give --count"))
			case c.Flags().Changed("timeout") && !p.untilDirect:
				return cli.Usage(errors.New("--timeout is for --until-direct only"))
			case p.timeout <= 0:
				return cli.Usage(fmt.Errorf("--timeout %q: must be longer than 0", wording.Duration(p.timeout)))
			}
			return p.run(c.Context(), c.OutOrStdout())
		},
	}
	p.add(c)
	c.Flags().IntVar(&p.count, "count", 4, "number of probes, 0 = until interrupted")
	c.Flags().BoolVar(&p.untilDirect, "until-direct", false, "probe until the path is no relay's")
	c.Flags().BoolVar(&p.timeline, "timeline", false, "add the steps of the last first contact")
	c.Flags().DurationVar(&p.timeout, "timeout", directTimeout, "how long --until-direct waits")
	c.ValidArgsFunction = completeNodes(&p.clientFlags)
	return c
}

func (p *pingCommand) run(ctx context.Context, w io.Writer) error {
	req := control.PingRequest{Target: p.target, Count: p.count, Timeline: p.timeline}
	endless := p.count == 0 || p.untilDirect
	switch {
	case p.untilDirect:
		req.Count = 0
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.timeout)
		defer cancel()
	case p.count == 0:
		req.IntervalMs = endlessEvery
	}
	on, lines := screen.Of(w), json.NewEncoder(w)
	lost := "timed out"
	r, err := p.client().Pings(ctx, req, func(x control.PingResult) error {
		if x.RTTMs == nil {
			lost = cmp.Or(x.Cause.String(), lost)
		}
		switch {
		case !p.json:
			view.Probe(w, on, p.target, x)
		case endless && !p.untilDirect:
			if err := lines.Encode(x); err != nil {
				return err
			}
		}
		if p.untilDirect && x.RTTMs != nil && view.DirectOrBetter(x.Path) {
			return errDirect
		}
		return nil
	})
	if errors.Is(err, control.ErrTooOld) && !endless {
		r, err = p.client().Ping(ctx, req)
	}
	ended := errors.Is(err, errDirect) || endless && ctx.Err() != nil
	if err != nil && !ended {
		return err
	}
	if perr := p.sum(w, r, endless); perr != nil {
		return perr
	}
	return p.outcome(r, err, lost)
}

// sum prints the reply, unless every line was JSON.
func (p *pingCommand) sum(w io.Writer, r control.PingReply, endless bool) error {
	switch {
	case p.json && endless && !p.untilDirect:
		return nil
	case p.json:
		return cli.JSON(w, r)
	}
	view.Pinged(w, screen.Of(w), r)
	return nil
}

// outcome is what the exit code says.
func (p *pingCommand) outcome(r control.PingReply, ended error, lost string) error {
	switch {
	case p.untilDirect && errors.Is(ended, errDirect):
		return nil
	case p.untilDirect && errors.Is(ended, context.Canceled):
		return fmt.Errorf("ping %s: interrupted: %w", p.target, errNotDirect)
	case r.Received == 0:
		return fmt.Errorf("ping %s: %w: %s", p.target, errNoAnswer, lost)
	case p.untilDirect:
		return fmt.Errorf("ping %s: %w within %s: the path is %s: %s", p.target, errNotDirect, wording.Duration(p.timeout), cmp.Or(r.Path, "unknown"), cmp.Or(r.Reason, "no reason is known"))
	}
	return nil
}
