package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/agent/view"
	"edgemesh/internal/cli"
	"edgemesh/internal/screen"
	"edgemesh/internal/wake"
	"edgemesh/internal/wording"
)

// watchEvery is how often status --watch refreshes.
const watchEvery = 2 * time.Second

// statusCommand is one call of status.
type statusCommand struct {
	clientFlags
	filter view.Filter
	node   string
	watch  bool
	check  bool
}

func newStatus() *cobra.Command {
	var s statusCommand
	c := &cobra.Command{
		Use:   "status [NODE|PEER-ID]",
		Short: "Show this node, what is wrong, and the path to each peer in use",
		Long: `Show whether all is well, what is wrong if not and what to do, this node, its relays, and
the peers in use or in trouble, grouped by path: as many as fit one screen, those with the
most traffic first. Idle peers are a number. With NODE, or its peer ID, show all that is
known of that peer. --check exits with 1 if something is broken.

PATH is how packets reach a peer now, best first; REASON, on a narrow terminal the line
below the peer, is why it is not a better one:
  native    routed by the kernel, over a LAN that both nodes are on
  vxlan     VXLAN in the kernel, across routers between private networks
  direct    through the tunnel, one node at an address of its own, or mapped for it
  punched   through the tunnel, both nodes behind NATs
  relayed   through the tunnel and a relay, encrypted end to end
  none      no path yet: packets wait
  idle      no recent traffic; the next packet connects

TX and RX are bytes since the agent started. RX includes those that came past the tunnel
(native and vxlan), as the kernel counts them; TX does not. Colours appear on a terminal
only, unless NO_COLOR is set.`,
		Example: `  edgemesh-agent status
  edgemesh-agent status edge-2
  edgemesh-agent status --path relayed --site berlin
  edgemesh-agent status --watch
  edgemesh-agent status --check >/dev/null || edgemesh-agent doctor
  edgemesh-agent status --json | jq '.peers[] | select(.path=="relayed") | .reason'`,
		Args: cli.Optional("NODE|PEER-ID"),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				s.node = args[0]
			}
			return s.run(c.Context(), c.OutOrStdout())
		},
	}
	s.add(c)
	c.Flags().BoolVar(&s.filter.All, "all", false, "show every peer, also idle ones")
	c.Flags().BoolVar(&s.check, "check", false, "exit with 1 if something is broken")
	c.Flags().StringVar(&s.filter.Path, "path", "", "show all peers with this path: "+strings.Join(view.Paths, ", "))
	c.Flags().StringVar(&s.filter.Site, "site", "", "show all peers at this site")
	c.Flags().BoolVar(&s.watch, "watch", false, "show it again every 2 s until interrupted")
	_ = c.RegisterFlagCompletionFunc("path", cobra.FixedCompletions(view.Paths, cobra.ShellCompDirectiveNoFileComp))
	_ = c.RegisterFlagCompletionFunc("site", func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		st, err := s.client().Status(c.Context())
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return view.Sites(st), cobra.ShellCompDirectiveNoFileComp
	})
	c.ValidArgsFunction = completeNodes(&s.clientFlags)
	return c
}

func (s *statusCommand) run(ctx context.Context, w io.Writer) error {
	if s.filter.Path != "" && !slices.Contains(view.Paths, s.filter.Path) {
		return cli.Usage(fmt.Errorf("--path %s: must be one of %s%s", s.filter.Path, strings.Join(view.Paths, ", "), wording.Offer(s.filter.Path, view.Paths)))
	}
	if s.watch && s.check {
		return cli.Usage(errors.New("--check exits after one look, --watch does not: give one of them"))
	}
	on := screen.Of(w)
	for first := true; ; first = false {
		err := s.show(ctx, w, on, !first || on.Width > 0 && s.watch)
		if !s.json && (errors.Is(err, control.ErrNotRunning) || errors.Is(err, control.ErrSilent)) {
			view.Doctor(w, on, []findings.Finding{notRunning(err)}, false)
			err = cli.ErrReported
		}
		if !s.watch || first && err != nil {
			return err
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, cli.ErrReported) {
			fmt.Fprintln(w, wording.PrintableLines(err.Error()))
		}
		if !wake.Sleep(ctx, watchEvery) {
			return nil // interrupted: that is how it ends
		}
	}
}

// show queries the agent once. over: what was shown before is replaced.
func (s *statusCommand) show(ctx context.Context, w io.Writer, on view.Screen, over bool) error {
	query := s.client().Status
	if s.node == "" && !s.json && s.filter == (view.Filter{}) {
		query = s.client().InUse
	}
	st, err := query(ctx)
	if over && !s.json {
		fmt.Fprint(w, on.Clear())
	}
	if err != nil {
		return err
	}
	now, filter := time.Now(), s.filter
	own := s.node == st.Node || s.node == st.PeerID
	switch {
	case own && s.node != "" && !s.json:
		filter.None = true
	case s.node != "" && !own:
		p, err := view.Find(st, s.node)
		if err != nil {
			return err
		}
		if !s.json {
			view.Peer(w, on, st, p, now)
			return s.checked(st)
		}
		st.Peers = []control.PeerStatus{p}
	}
	if sites := view.Sites(st); s.filter.Site != "" && !slices.Contains(sites, s.filter.Site) {
		return fmt.Errorf("--site %s: no peer is at this site%s", s.filter.Site, wording.Offer(s.filter.Site, sites))
	}
	if s.json {
		st.Peers = s.filter.Peers(st.Peers)
		err = cli.JSON(w, st)
	} else {
		view.Status(w, on, st, filter, now)
	}
	if err != nil {
		return err
	}
	return s.checked(st)
}

// checked is an error if something is broken, and that is what the command is for.
func (s *statusCommand) checked(st control.Status) error {
	if !s.check {
		return nil
	}
	return reported(st.Found())
}

// completeNodes offers the names of nodes to the shell.
func completeNodes(f *clientFlags) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		st, err := f.client().Status(c.Context())
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		out := []string{st.Node}
		for _, p := range st.Peers {
			out = append(out, p.Node)
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
