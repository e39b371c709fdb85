// Command edgemesh-relay serves the pod network's members on a public host. The
// commands' help says how to use it, DESIGN.md why it works like that.
//
//	main.go      the commands
//	run.go       from the configuration to SIGTERM; follows the membership
//	server.go    the libp2p host and its services
//	access.go    who is admitted beside the members: by join secret, or by a controller
//	gater.go     refuses connections
//	metrics.go   counters; serves /metrics, /healthz, /readyz
//	tcp.go       TCP and WebSocket transports
//	share.go     a TCP port for both
//	listen.go    listening addresses
//	addrs.go     addresses that members are given
//	own.go       the state directory for a relay that is not root
//	loglevel.go  the socket of a running relay: the level of its log
//	install.go   install and uninstall: a unit of systemd, the kernel's limits
//	status.go    whether it is well, on the same socket
//	config.go    the configuration; one relay per state directory
package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"edgemesh/internal/cli"
	agent "edgemesh/internal/config"
	"edgemesh/internal/logs"
	"edgemesh/internal/self"
	"edgemesh/internal/version"
	"edgemesh/tunnel/p2p/who/identity"
)

func main() { cli.Main(newRoot()) }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:     program,
		Version: version.Number(),
		Short:   "Public relay of the pod network: rendezvous, hole punching, fallback path",
		Long: `edgemesh-relay runs on a host that all nodes can reach. Members find each other
through it, use it to punch holes through their NATs, and send through it what cannot
go directly. It sees ciphertext only and serves members only.`,
	}
	root.AddCommand(newInstall(), newRun(), newStatus(), newOwn(), newUninstall(), newLogLevel(),
		self.ID(program, "relay", defaultStateDir), self.Version(program, identity.Protocols()))
	return root
}

func newRun() *cobra.Command {
	var configFile, membershipFile string
	c := &cobra.Command{
		Use:   "run",
		Short: "Run the relay until SIGTERM",
		Long: `Run the relay until SIGTERM.

Once ready, it prints its addresses to standard output, one multiaddr per line and
nothing else: paste them into the membership's relays. Logs go to standard error.
Changes of the membership apply within 2 s; a peer that is no longer a member is
disconnected, circuits included.

The configuration is YAML; only membership, signers or joinSecretFile is required:
  stateDir        identity.key and the membership's snapshot (default ` + defaultStateDir + `)
  listen          multiaddrs (default TCP and QUIC on port 4470, IPv4 and IPv6)
  announce        addresses to print and give to members instead of those of the
                  interfaces, for a relay behind a 1:1 NAT; one without a transport
                  counts for every listen port
  membership      {file: PATH of cluster.yaml}, or {kubernetes: {kubeconfig: PATH}}
  joinSecretFile  file (0600) with a secret, or two while it is rotated: nodes that prove
                  it are served, so the relay needs no access to the API. A cluster.yaml
                  beside it need not list nodes; its podCIDRs and banned are obeyed
  signers         keys whose signed membership alone is believed, as edgemesh-agent
                  membership key prints them (default none). With a key alone, such as the
                  PodNetwork's status.signer, whoever it has signed is served
  signersFile     file with more of them, in a cluster where a controller writes them
  metricsAddress  /metrics, /healthz, /readyz (default ` + defaultMetrics + `, "" = off; mesh:PORT =
                  127.0.0.1 and the mesh addresses of this host's agent)
  log             {format: text, level: info}: text or json; debug, info, warn, error
  runtimeDir      the agent's, whose subnet.json names them (default ` + agent.DefaultRuntimeDir + `)
  ` + agent.RelayLimitsHelp,
		Example: `  edgemesh-relay run --membership /etc/edgemesh/cluster.yaml
  edgemesh-relay run --config ` + defaultConfig,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			conf, err := configure(configFile, membershipFile)
			if err != nil {
				return cli.Usage(err)
			}
			logger, level := logs.New(c.ErrOrStderr(), conf.log, false)
			conf.level = level
			return run(c.Context(), conf, c.OutOrStdout(), logger)
		},
	}
	c.Flags().StringVar(&configFile, "config", "", "configuration file (default "+defaultConfig+")")
	c.Flags().StringVar(&membershipFile, "membership", "", "membership file, with defaults for all else")
	return c
}

// configure reads the configuration from the one source that is given.
func configure(configFile, membershipFile string) (config, error) {
	switch {
	case configFile != "" && membershipFile != "":
		return config{}, errors.New("--config and --membership exclude each other; set membership.file in the configuration file")
	case membershipFile != "":
		return membershipConfig(membershipFile)
	case configFile != "":
		return loadConfig(configFile)
	}
	c, err := loadConfig(defaultConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return config{}, fmt.Errorf("no configuration: pass --membership or --config, or create %s", defaultConfig)
	}
	return c, err
}
