package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"edgemesh/agent/capture"
	"edgemesh/agent/control"
	kernel "edgemesh/agent/host"
	"edgemesh/agent/view"
	"edgemesh/internal/cli"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wake"
	"edgemesh/internal/wording"
)

const (
	// captureFor and captureBytes bound a capture unless options say something else.
	captureFor   = time.Minute
	captureBytes = 100 << 20
	// captureLook is how often paths are fetched from the agent.
	captureLook = 2 * time.Second
)

// errEnough ends a capture.
var errEnough = errors.New("enough")

// captureCommand is one call of capture.
type captureCommand struct {
	clientFlags
	filter   capture.Filter
	file     string
	count    int
	duration time.Duration
	bytes    int64

	match   atomic.Pointer[capture.Match]
	packets int
}

func newCapture() *cobra.Command {
	var k captureCommand
	var ip string
	c := &cobra.Command{
		Use:   "capture",
		Short: "Show or record the packets that pods here and on other nodes send each other",
		Long: `Show the packets between this node and other nodes' pods, a line each with the peer and the
path, or write them to a pcapng file for tcpdump and Wireshark, where peer and path are the
packets' comments, and the NetworkPolicy of this node that drops it. Packets are those of the pods, before encryption: of the tunnel at its
TUN, where one may be a super-segment of 64 KiB; of VXLAN paths at edgemesh-vx, without the
outer headers; of native paths at the uplinks, if a path is native when the capture begins.

It ends after --duration, --count packets or --max-bytes, whichever comes first. Nothing is
slowed down, and what is not read in time is counted and missing.`,
		Example: `  edgemesh-agent capture --peer edge-2
  edgemesh-agent capture --pod 10.244.2.7 --write /tmp/pod.pcapng --duration 10s
  edgemesh-agent capture --write - | wireshark -k -i -`,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if ip != "" {
				if k.filter.Pod, err = netip.ParseAddr(ip); err != nil {
					return cli.Usage(fmt.Errorf("--pod %s: not an IP address", ip))
				}
			}
			switch {
			case k.count < 0:
				return cli.Usage(fmt.Errorf("--count \"%d\": must be 0 or more; 0 is any number", k.count))
			case k.duration <= 0:
				return cli.Usage(fmt.Errorf("--duration %q: must be longer than 0", wording.Duration(k.duration)))
			case k.bytes <= 0:
				return cli.Usage(fmt.Errorf("--max-bytes \"%d\": must be 1 or more", k.bytes))
			}
			return k.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	k.addDir(c)
	c.Flags().StringVar(&k.filter.Peer, "peer", "", "only packets of this node's pods")
	c.Flags().StringVar(&ip, "pod", "", "only packets from or to this address")
	c.Flags().StringVar(&k.file, "write", "", "write a pcapng file, which must not exist; - is standard output")
	c.Flags().IntVar(&k.count, "count", 0, "end after so many packets, 0 = any number")
	c.Flags().DurationVar(&k.duration, "duration", captureFor, "end after this time")
	c.Flags().Int64Var(&k.bytes, "max-bytes", captureBytes, "end when so many bytes are written")
	_ = c.RegisterFlagCompletionFunc("peer", func(c *cobra.Command, _ []string, text string) ([]string, cobra.ShellCompDirective) {
		return completeNodes(&k.clientFlags)(c, nil, text)
	})
	return c
}

func (k *captureCommand) run(ctx context.Context, w, said io.Writer) (err error) {
	st, err := k.client().Status(ctx)
	if err != nil {
		return err
	}
	peers := st.Peers
	if k.filter.Peer != "" {
		p, err := view.Find(st, k.filter.Peer)
		if err != nil {
			return err
		}
		peers = []control.PeerStatus{p}
	}
	if k.filter.Pod.IsValid() {
		if err := view.CheckAddress(st, peers, k.filter.Pod); err != nil {
			return fmt.Errorf("--pod: %w", err)
		}
	}
	k.match.Store(capture.NewMatch(st, k.filter))
	links, err := capture.Links(ours(), slices.ContainsFunc(peers, k.native))
	if err != nil {
		return err
	}
	if len(links) == 0 {
		return fmt.Errorf("no interface of the pod network is here: %s is missing; see `edgemesh-agent doctor`", kernel.TUNName)
	}
	take, end, err := k.output(w)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	var names []string
	for _, l := range links {
		names = append(names, l.Name)
	}
	fmt.Fprintf(said, "capturing on %s for %s\n", wording.List(names), wording.Duration(k.duration))
	dropped, err := k.capture(ctx, links, take, said)
	fmt.Fprintf(said, "%s, %d more were not read in time\n", wording.Count(k.packets, "packet"), dropped)
	for _, x := range k.flows() {
		from, err := netip.ParseAddr(x.From)
		to, err2 := netip.ParseAddr(x.To)
		if errors.Join(err, err2) == nil && x.Direction == "egress" && k.match.Load().Between(from, to) != nil {
			fmt.Fprintf(said, "never sent: %s to %s, %s port %d, %s within the last minute, dropped by NetworkPolicy %s\n", from, to, x.Protocol, x.Port,
				wording.Count(int(x.Packets), "packet"), wording.Printable(wording.List(x.Policies)))
		}
	}
	return err
}

// flows are those that NetworkPolicies of this node have dropped within the last minute; none of an agent that does not know them.
func (k *captureCommand) flows() []control.PolicyFlow {
	ctx, cancel := context.WithTimeout(context.Background(), captureLook) // the capture's has ended
	defer cancel()
	p, _ := k.client().Policies(ctx, "")
	return p.Flows
}

// native reports whether packets are wanted of a peer that has a native path.
func (k *captureCommand) native(p control.PeerStatus) bool {
	return p.Path == string(mesh.Native) && (k.filter.Peer == "" || p.Node == k.filter.Peer)
}

// ours are the pod network's own interfaces.
func ours() []string { return []string{kernel.TUNName, kernel.VXLANName} }

// missed says once of each interface that a path leads over it since the capture began.
func missed(links []capture.Link, said io.Writer) []capture.Link {
	now, err := capture.Links(ours(), true)
	if err != nil {
		return links
	}
	for _, l := range now {
		if !slices.Contains(links, l) {
			fmt.Fprintf(said, "a path leads over %s now, where nothing is captured: begin again\n", l.Name)
			links = append(links, l)
		}
	}
	return links
}

// capture runs until enough has come.
func (k *captureCommand) capture(ctx context.Context, links []capture.Link, take func(capture.Packet, string) error, said io.Writer) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, k.duration)
	var follow sync.WaitGroup
	defer follow.Wait()
	defer cancel()
	follow.Go(func() {
		covered := slices.Clone(links)
		for wake.Sleep(ctx, captureLook) {
			if st, err := k.client().Status(ctx); err == nil {
				k.match.Store(capture.NewMatch(st, k.filter))
				if slices.ContainsFunc(st.Peers, k.native) {
					covered = missed(covered, said)
				}
			}
		}
	})
	drops := capture.NewDrops(k.flows)
	dropped, err := capture.Run(ctx, links, func(p capture.Packet) error {
		peer := k.match.Load().Peer(p.Data)
		if peer == nil {
			return nil
		}
		k.packets++
		if err := take(p, capture.Comment(peer)+drops.Comment(p)); err != nil {
			return err
		}
		if k.packets == k.count {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return dropped, err
}

// counter counts the bytes that are written.
type counter struct {
	to io.Writer
	n  int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.n += int64(n)
	return n, err
}

// output is where packets go: lines, or a file. end closes it.
func (k *captureCommand) output(w io.Writer) (take func(capture.Packet, string) error, end func() error, err error) {
	end = func() error { return nil }
	if k.file != "" && k.file != "-" {
		f, err := os.OpenFile(k.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // pods' data
		if err != nil {
			return nil, nil, fmt.Errorf("--write: %w", err)
		}
		w, end = f, f.Close
	}
	to := &counter{to: w}
	write := func(p capture.Packet, comment string) error {
		direction := "in "
		if p.Out {
			direction = "out"
		}
		_, err := fmt.Fprintf(to, "%s %s %s  [%s]\n", p.At.Format("15:04:05.000000"), direction, capture.Line(p), comment)
		return err
	}
	if k.file != "" {
		out, err := capture.NewWriter(to)
		if err != nil {
			return nil, nil, errors.Join(err, end())
		}
		write = out.Packet
	}
	return func(p capture.Packet, comment string) error {
		if err := write(p, comment); err != nil {
			return err
		}
		if to.n >= k.bytes {
			return errEnough
		}
		return nil
	}, end, nil
}
