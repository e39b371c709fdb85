// Command edgemesh-relay serves the pod network's members on a public host. See
// the commands' help.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// execute runs a command line and returns the exit code.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "edgemesh-relay:", err)
	var e *exitError
	if errors.As(err, &e) {
		return e.code
	}
	return exitFailed
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "edgemesh-relay",
		Short: "Public relay of the pod network: rendezvous, hole punching, fallback path",
		Long: `edgemesh-relay runs on a host that all nodes can reach. Members find each other
through it, punch holes with its help, and relay through it what cannot be punched.
It sees only ciphertext and serves members only.`,
		Args:          noArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usage(c, err) })
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(newRun(), newID(), newVersion())
	return root
}

func usage(c *cobra.Command, err error) error {
	return usageError(fmt.Errorf("%w (see `%s --help`)", err, c.CommandPath()))
}

func noArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if c.HasSubCommands() {
		return usage(c, fmt.Errorf("unknown command %q", args[0]))
	}
	return usage(c, fmt.Errorf("unexpected argument %q", args[0]))
}

func newRun() *cobra.Command {
	var configFile, membershipFile string
	c := &cobra.Command{
		Use:   "run",
		Short: "Run the relay until SIGTERM",
		Long: `Run the relay until SIGTERM.

Once ready it prints its addresses to standard output, one multiaddr per line and
nothing else: paste them into the membership's relays. Logs go to standard error.
The membership is followed: a change is in force within 2 s, and whoever is no
longer a member is cut off, circuits included.

The configuration is YAML; every key is optional but membership.file:
  stateDir        identity.key and the membership's snapshot (default ` + defaultStateDir + `)
  listen          multiaddrs (default TCP and QUIC on port 4470, IPv4 and IPv6)
  announce        addresses to give out instead of the interfaces', for a relay
                  behind a 1:1 NAT; without a transport, for every listen port
  membership      {file: PATH of cluster.yaml}
  metricsAddress  /metrics, /healthz, /readyz (default ` + defaultMetrics + `, "" = off)
  ` + limitsHelp,
		Example: `  edgemesh-relay run --membership /etc/edgemesh/cluster.yaml
  edgemesh-relay run --config ` + defaultConfig,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			conf, err := configure(configFile, membershipFile)
			if err != nil {
				return usageError(err)
			}
			logger := slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
			return run(c.Context(), conf, c.OutOrStdout(), logger)
		},
	}
	c.Flags().StringVar(&configFile, "config", "", "configuration file (default "+defaultConfig+")")
	c.Flags().StringVar(&membershipFile, "membership", "", "membership file, with defaults for all else")
	return c
}

// configure takes the one source of configuration that is given.
func configure(configFile, membershipFile string) (config, error) {
	switch {
	case configFile != "" && membershipFile != "":
		return config{}, errors.New("--config and --membership exclude each other; the file has membership.file")
	case membershipFile != "":
		return membershipConfig(membershipFile)
	case configFile != "":
		return loadConfig(configFile)
	}
	c, err := loadConfig(defaultConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return config{}, fmt.Errorf("neither --membership nor --config is given, and there is no %s", defaultConfig)
	}
	return c, err
}

func newID() *cobra.Command {
	var stateDir string
	c := &cobra.Command{
		Use:   "id",
		Short: "Print this relay's peer ID; make its key first if there is none",
		Long: `Print this relay's peer ID, and nothing else. The key is made once, in
STATE-DIR/identity.key (mode 0600), and is the relay's identity from then on.`,
		Example: "  edgemesh-relay id --state-dir " + defaultStateDir,
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			key, err := loadKey("--state-dir", stateDir)
			if err != nil {
				return err
			}
			id, err := peer.IDFromPrivateKey(key)
			if err != nil {
				return fmt.Errorf("derive peer ID: %w", err)
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), id)
			return err
		},
	}
	c.Flags().StringVar(&stateDir, "state-dir", defaultStateDir, "state directory that holds identity.key")
	return c
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), version)
			return err
		},
	}
}
