package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"edgemesh/internal/cli"
	"edgemesh/internal/config"
	"edgemesh/internal/nodeip"
	"edgemesh/internal/wake"
	"edgemesh/internal/wording"
)

func newNodeIP() *cobra.Command {
	var path, runtimeDir, stateDir string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "node-ip",
		Short: "Print this node's mesh addresses: what kubelet's --node-ip is to be",
		Long: `Print this node's mesh addresses, separated by commas, and nothing else: what
kubelet's and k3s's --node-ip take; edgecore's nodeIP takes the first one. They are the
first addresses of the node's first blocks. No agent needs to run: what an earlier one
left, in the runtime or state directory, says the same. Exits with 1 while the node has
no block, which it gets after it has joined the cluster.

With --wait it ends as soon as the host has these addresses, or with 1 after that time.`,
		Example: `  kubelet --node-ip=$(edgemesh-agent node-ip) …
  edgemesh-agent install --node-ip    # does it for good`,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := nodeConfig(path, c.Flags().Changed("config"))
			if err != nil {
				return cli.Usage(err)
			}
			if runtimeDir != "" {
				cfg.RuntimeDir = runtimeDir
			}
			if stateDir != "" {
				cfg.StateDir = stateDir
			}
			addrs, err := nodeip.Load(cfg.RuntimeDir, cfg.StateDir, cfg.NodeName)
			if err == nil {
				addrs, err = nodeip.Usable(addrs)
			}
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintln(c.OutOrStdout(), strings.Join(wording.Texts(addrs), ",")); err != nil {
				return err
			}
			return awaitAddresses(c.Context(), addrs, wait)
		},
	}
	c.Flags().StringVar(&path, "config", config.DefaultPath, "the agent's configuration, which names the directories and the node")
	c.Flags().StringVar(&runtimeDir, "runtime-dir", "", "the agent's runtime directory, if not the configured one")
	c.Flags().StringVar(&stateDir, "state-dir", "", "the agent's state directory, if not the configured one")
	c.Flags().DurationVar(&wait, "wait", 0, "wait for this time until an interface of this host has the addresses")
	return c
}

// nodeConfig is the agent's configuration, or the defaults where there is none at the default path.
func nodeConfig(path string, given bool) (config.Config, error) {
	cfg, err := config.Load(path)
	if err == nil || given || !errors.Is(err, fs.ErrNotExist) {
		return cfg, err
	}
	name := os.Getenv("NODE_NAME")
	if name == "" {
		if name, err = os.Hostname(); err != nil {
			return cfg, err
		}
	}
	return config.Config{RuntimeDir: config.DefaultRuntimeDir, StateDir: config.DefaultStateDir, NodeName: strings.ToLower(name)}, nil
}

// errAbsent means that the host does not have its mesh addresses in time.
var errAbsent = errors.New("this host does not have its mesh addresses yet: no agent has set up the bridge since the last boot (`edgemesh-agent doctor`); kubelet runs without, and reports them when they are there")

// lookAgain is how often addresses are looked for.
const lookAgain = 100 * time.Millisecond

// awaitAddresses waits until this host has all addrs. With a wait of 0 it does not wait.
func awaitAddresses(ctx context.Context, addrs []netip.Addr, wait time.Duration) error {
	if wait <= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		here, err := nodeip.Present(addrs)
		if err != nil || len(here) == len(addrs) {
			return err
		}
		if !wake.Sleep(ctx, lookAgain) {
			return errAbsent
		}
	}
}
