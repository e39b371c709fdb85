package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"edgemesh/agent/control"
	"edgemesh/agent/livemap"
	"edgemesh/agent/observe"
	"edgemesh/internal/cli"
)

// mapListen is where the map is by default.
const mapListen = "127.0.0.1:9475"

// mapCommand is one call of map.
type mapCommand struct {
	clientFlags
	listen, tokenFile string
	untilEOF          bool
}

func newMap() *cobra.Command {
	var k mapCommand
	c := &cobra.Command{
		Use:   "map",
		Short: "Serve a live map of nodes and paths to a browser",
		Long: `Serve a page with nodes by site, relays, and the paths in use with round trip and throughput, as
they change, until interrupted. It prints the address to open, with a token: without it nobody
sees the page. The page is complete in itself and works offline.

On a node that ` + "`observers`" + ` names, in PodNetwork or cluster.yaml, all members are queried, which
connects this node to them while the command runs. On other nodes the map has the pairs of
this node, from both ends.

The page is on this host only, or with --listen mesh:PORT on the node's mesh address, for other
nodes and pods as far as hostAccess lets them. It is HTTP: encrypted by the tunnel, not on native
and VXLAN paths. From elsewhere use ssh -L 9475:127.0.0.1:9475 NODE, or kubectl edgemesh map NODE.`,
		Example: `  edgemesh-agent map
  edgemesh-agent map --listen mesh:9475 --token-file /etc/edgemesh/map.token`,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			ctx := c.Context()
			if k.untilEOF {
				ctx = untilEOF(ctx, c.InOrStdin())
			}
			return k.run(ctx, c.OutOrStdout())
		},
	}
	k.addDir(c)
	c.Flags().StringVar(&k.listen, "listen", mapListen, "loopback address and port, or mesh:PORT for the node's mesh address")
	c.Flags().BoolVar(&k.untilEOF, "until-eof", false, "end when standard input does, as with kubectl exec -i")
	c.Flags().StringVar(&k.tokenFile, "token-file", "", "file with the token (default: a new one each time)")
	return c
}

// untilEOF ends with ctx, or when in does: kubectl ends no program in a pod, but closes what it reads. The goroutine ends with the process,
// as nothing interrupts a read.
func untilEOF(ctx context.Context, in io.Reader) context.Context {
	ctx, end := context.WithCancel(ctx)
	go func() {
		defer end()
		_, _ = io.Copy(io.Discard, in)
	}()
	return ctx
}

func (k *mapCommand) run(ctx context.Context, w io.Writer) error {
	page := livemap.Page{Token: livemap.NewToken(), Source: k.source}
	if k.tokenFile != "" {
		b, err := os.ReadFile(k.tokenFile)
		if err != nil {
			return cli.Usage(fmt.Errorf("--token-file: %w", err))
		}
		page.Token = strings.TrimSpace(string(b))
		if err := livemap.CheckToken(page.Token); err != nil {
			return cli.Usage(fmt.Errorf("--token-file %s: %w", k.tokenFile, err))
		}
	}
	st, err := k.client().Status(ctx)
	if err != nil {
		return err
	}
	at, err := mapAddress(k.listen, st.Addresses)
	if err != nil {
		return cli.Usage(fmt.Errorf("--listen %s: %w", k.listen, err))
	}
	l, err := net.Listen("tcp", at)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("--listen %s: another program, or another map, has the port; choose another one, or 0 for any that is free", k.listen)
	}
	if err != nil {
		return fmt.Errorf("--listen %s: %w", k.listen, err)
	}
	fmt.Fprintln(w, page.Address(l))
	return page.Serve(ctx, l)
}

// source has the agent query members.
func (k *mapCommand) source(ctx context.Context, each func(observe.Event) error) error {
	return control.NewClient(k.runtimeDir).Observe(ctx, func(v json.RawMessage) error {
		var e observe.Event
		if err := json.Unmarshal(v, &e); err != nil {
			return fmt.Errorf("read what the agent says: %w", err)
		}
		return each(e)
	})
}

// mapAddress is where to listen: on the loopback, or on a node's mesh address. Other addresses are other people's networks,
// over which the token would travel in the clear.
func mapAddress(listen string, mesh []string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", errors.New("must be 127.0.0.1:PORT, [::1]:PORT or mesh:PORT")
	}
	if host == "mesh" {
		if len(mesh) == 0 {
			return "", errors.New("this node has no mesh address yet; `edgemesh-agent doctor` says why")
		}
		return net.JoinHostPort(mesh[0], port), nil
	}
	if a, err := netip.ParseAddr(host); err != nil || !a.IsLoopback() {
		return "", errors.New("must be 127.0.0.1:PORT, [::1]:PORT or mesh:PORT; from elsewhere use `ssh -L 9475:127.0.0.1:9475 NODE`")
	}
	return listen, nil
}
