package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"edgemesh/agent/control"
	"edgemesh/agent/daemon"
	"edgemesh/internal/cli"
	"edgemesh/internal/config"
	"edgemesh/internal/logs"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/source"
	"edgemesh/internal/version"
	"edgemesh/tunnel/p2p"
)

func newRun() *cobra.Command {
	var path string
	var verbose bool
	var opts daemon.Options
	c := &cobra.Command{
		Use:   "run",
		Short: "Run the agent",
		Long: `Run the agent in the foreground until SIGTERM. It sets up bridge, TUN, routes and
firewall rules, installs the CNI plugin, connects to the relays and carries packets.
When it stops, pods, routes and rules stay as they are; ` + "`edgemesh-agent cleanup`" + ` removes
them. Exit code 2: fix the configuration or the membership (stderr names file, field and
remedy); 1: the system or the network failed.

The configuration is YAML; every key except membership is optional:
` + config.Help(),
		Example: `  edgemesh-agent run --config /etc/edgemesh/agent.yaml

  # the shortest configuration:
  #   membership: {file: /etc/edgemesh/cluster.yaml}`,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := config.Load(path)
			if err != nil {
				return cli.Usage(err)
			}
			opts.Version, opts.Revision = version.Number(), os.Getenv("EDGEMESH_REVISION")
			opts.Log, opts.Level = logs.New(os.Stderr, cfg.Log, verbose)
			err = naming(path, cfg, daemon.Run(c.Context(), cfg, opts))
			if err != nil && !errors.Is(err, daemon.ErrLocked) && !errors.Is(err, daemon.ErrHostTaken) && !errors.Is(err, kube.ErrRolloutStopped) {
				if err := control.KeepFailure(cfg.RuntimeDir, err); err != nil {
					opts.Log.Debug("failure not recorded: status and doctor will not show why the agent ended", "err", err)
				}
			}
			return graded(err)
		},
	}
	addConfigFlags(c, &path, &verbose)
	c.Flags().BoolVar(&opts.PortableTUN, "portable-tun", false, "use the TUN device without offloads even if the kernel has them (slower; to rule out offload bugs)")
	c.Flags().BoolVar(&opts.Wait, "wait", false, "if another agent holds this state directory, stand by and take over when it ends")
	return c
}

// naming adds the configuration's path, and the key an error of the daemon is about
// where its text does not name one.
func naming(path string, cfg config.Config, err error) error {
	if errors.Is(err, p2p.ErrListen) || errors.As(err, new(*config.KeyError)) {
		return fmt.Errorf("%s: %w", path, err)
	}
	return source.Explain(path, cfg.Membership, err)
}

func newCleanup() *cobra.Command {
	var path string
	var verbose, purge bool
	c := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove what the agent set up on this host",
		Long: `Remove the CNI configuration, bridge, TUN, routes, rules and firewall chains, and
restore the sysctls: the host is left as it was found. Pods lose their network. The
node's key and the records of pod addresses stay, so a node that comes back keeps its
identity. The agent must not be running.`,
		Example: `  edgemesh-agent cleanup --config /etc/edgemesh/agent.yaml
  edgemesh-agent cleanup --purge    # also the key: the node then needs a new entry in the membership`,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			log := newLogger(verbose)
			cfg, err := cleanupConfig(path, c.Flags().Changed("config"), log)
			if err != nil {
				return cli.Usage(err)
			}
			// Half a cleanup is worse than a late one: a signal does not end it.
			err = graded(daemon.Cleanup(context.WithoutCancel(c.Context()), cfg, purge, log))
			return cli.Done(c, err, "the pod network is removed from this host; pods made with it have no network")
		},
	}
	addConfigFlags(c, &path, &verbose)
	c.Flags().BoolVar(&purge, "purge", false, "also remove the node's key, port and membership snapshot")
	return c
}

// cleanupConfig falls back on the defaults when the default file does not exist:
// after an uninstall the configuration may be gone before the host is clean.
func cleanupConfig(path string, given bool, log *slog.Logger) (config.Config, error) {
	cfg, err := config.Load(path)
	if err != nil && !given && errors.Is(err, os.ErrNotExist) {
		return defaultDirs(log, "no configuration file: cleaning the default directories", "file", path), nil
	}
	return cfg, err
}

// defaultDirs are the directories to clean when no configuration names them. It logs
// them with why, because the agent may have used others.
func defaultDirs(log *slog.Logger, why string, args ...any) config.Config {
	log.Warn(why, append(args,
		"stateDir", config.DefaultStateDir, "runtimeDir", config.DefaultRuntimeDir,
		"cniConfDir", config.DefaultCNIConfDir, "cniBinDir", config.DefaultCNIBinDir)...)
	return config.Config{
		StateDir: config.DefaultStateDir, RuntimeDir: config.DefaultRuntimeDir,
		CNIConfDir: config.DefaultCNIConfDir, CNIBinDir: config.DefaultCNIBinDir, CNIDataDir: config.DefaultCNIDataDir,
	}
}

func addConfigFlags(c *cobra.Command, path *string, verbose *bool) {
	c.Flags().StringVar(path, "config", config.DefaultPath, "configuration file")
	c.Flags().BoolVarP(verbose, "verbose", "v", false, "log details")
}

// newLogger logs to stderr; details only if verbose.
func newLogger(verbose bool) *slog.Logger {
	log, _ := logs.New(os.Stderr, logs.Config{}, verbose)
	return log
}

// graded marks those errors of the daemon that are the operator's to fix.
func graded(err error) error {
	if errors.As(err, new(*daemon.ConfigError)) {
		return cli.Usage(err)
	}
	return err
}
