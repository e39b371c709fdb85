package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	kernel "edgemesh/agent/host"
	"edgemesh/agent/netcheck"
	"edgemesh/agent/view"
	"edgemesh/internal/cli"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/file"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/snapshot"
	"edgemesh/internal/proxy"
	"edgemesh/internal/screen"
)

// netcheckCommand is one call of netcheck.
type netcheckCommand struct {
	config      string
	membership  string
	relays      []string
	proxy       string
	json        bool
	portMapping bool
	prove       bool
}

func newNetcheck() *cobra.Command {
	var n netcheckCommand
	c := &cobra.Command{
		Use:   "netcheck",
		Short: "Measure what this network lets through: NAT, UDP, ports, proxy, and each relay's round trip",
		Long: `Measure what this network lets through, with sockets of its own; no agent needs to run,
and no key to exist. It shows the kind of NAT, where relays see this host (per IP version),
whether UDP passes, whether a router grants a port, each relay's round trip by TCP, UDP
(STUN) and WebSocket, the proxy, MTUs, and how far the clock is off.

The relays are those given with --relay, else those of --membership, else those of the
agent's configuration: its membership file, or the snapshot of the last membership. Exits
with 1 if no relay is known or none answers; with --prove, if one of them does not show,
in a handshake by TCP, the key that its peer ID (/p2p/…) names.`,
		Example: `  edgemesh-agent netcheck
  edgemesh-agent netcheck --relay /ip4/5.5.5.5/tcp/4470 \
    --relay /ip4/5.5.5.5/udp/4470/quic-v1
  edgemesh-agent netcheck --membership cluster.yaml --json | jq .nat.kind`,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := n.configure(c.Flags().Changed("config"))
			if err != nil {
				return cli.Usage(err)
			}
			r := netcheck.Run(c.Context(), cfg)
			if n.json {
				err = cli.JSON(c.OutOrStdout(), r)
			} else {
				view.Netcheck(c.OutOrStdout(), screen.Of(c.OutOrStdout()), r)
			}
			if err != nil {
				return err
			}
			return reported(r.Problems)
		},
	}
	c.Flags().StringVar(&n.config, "config", config.DefaultPath, "configuration file of the agent, if there is one")
	c.Flags().StringVar(&n.membership, "membership", "", "membership file (cluster.yaml) that has the relays")
	c.Flags().StringArrayVar(&n.relays, "relay", nil, "multiaddr of a relay; can be repeated")
	c.Flags().StringVar(&n.proxy, "proxy", "", "HTTP proxy, or none (default: the configuration's, then $HTTPS_PROXY)")
	c.Flags().BoolVar(&n.portMapping, "port-mapping", true, "request a port from routers, which is given back immediately")
	c.Flags().BoolVar(&n.prove, "prove", false, "each relay must show, by TCP, the key that its peer ID names")
	c.Flags().BoolVar(&n.json, "json", false, "print JSON")
	return c
}

// configure finds the relays and the proxy. given: --config was.
func (n *netcheckCommand) configure(given bool) (netcheck.Config, error) {
	out := netcheck.Config{Mark: kernel.Mark, PortMapping: n.portMapping, Prove: n.prove}
	cfg, err := config.Load(n.config)
	if err != nil && (given || !errors.Is(err, fs.ErrNotExist) && len(n.relays) == 0 && n.membership == "") {
		return out, err
	}
	if n.proxy == "" {
		n.proxy = cfg.Proxy
	}
	if out.Proxy, err = proxy.New(proxy.Config{URL: n.proxy, Credentials: cfg.ProxyUser, Getenv: os.Getenv}); err != nil {
		return out, fmt.Errorf("proxy: %w", err)
	}
	switch {
	case len(n.relays) > 0:
		out.Relays, err = relaysOf(n.relays)
	case n.membership != "":
		out.Relays, err = relaysIn(n.membership)
	case cfg.Membership.File != "":
		out.Relays, err = relaysIn(cfg.Membership.File)
	case cfg.StateDir != "":
		var s mesh.State
		if s, err = snapshot.Load(cfg.StateDir); errors.Is(err, fs.ErrNotExist) {
			err = nil // never joined
		}
		out.Relays = s.Relays
	}
	return out, err
}

func relaysIn(path string) ([]mesh.Relay, error) {
	s, err := file.Load(path)
	return s.Relays, err
}

// relaysOf groups addresses by peer ID; those without one by host.
func relaysOf(addrs []string) ([]mesh.Relay, error) {
	var out []mesh.Relay
	of := map[string]int{} // place in out by peer ID or host
	for _, a := range addrs {
		host, err := netcheck.HostOf(a)
		if err != nil {
			return nil, fmt.Errorf("--relay %w", err)
		}
		addr, id, _ := strings.Cut(a, "/p2p/")
		same := cmp.Or(id, "host "+host)
		i, ok := of[same]
		if !ok {
			i = len(out)
			of[same], out = i, append(out, mesh.Relay{PeerID: mesh.PeerID(id)})
		}
		out[i].Addrs = append(out[i].Addrs, addr)
	}
	return out, nil
}
