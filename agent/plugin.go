package main

import (
	"errors"

	"github.com/spf13/cobra"

	"edgemesh/agent/cniconf"
	"edgemesh/internal/cli"
	"edgemesh/internal/config"
)

func newPlugin() *cobra.Command {
	var path string
	var verbose, rm bool
	c := &cobra.Command{
		Use:   "plugin",
		Short: "Install the CNI plugin, and nothing else",
		Long: `Copy edgemesh-cni from the directory of this binary to cniBinDir, if it is not there yet,
and end. The DaemonSet's init container does that, so that the agent itself may not write
to a directory whose programs the container runtime runs as root on the host. Where
cniMode is keep, or cniBinDir is "", nothing is installed.`,
		Example: `  edgemesh-agent plugin --config /etc/edgemesh/agent.yaml
  edgemesh-agent plugin --remove    # before a cleanup by an agent that may not remove it`,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			log := newLogger(verbose)
			cfg, err := cleanupConfig(path, !rm || c.Flags().Changed("config"), log)
			if err != nil {
				return cli.Usage(err)
			}
			i := cniconf.New(cniconf.Config{BinDir: cfg.CNIBinDir, Log: log})
			switch {
			case rm:
				return cli.Done(c, i.RemovePlugin(), "removed edgemesh-cni from %s", cfg.CNIBinDir)
			case cfg.CNIMode == config.CNIKeep:
				return cli.Done(c, nil, "installed nothing: cniMode is keep")
			}
			if cfg.CNIBinDir == "" {
				return cli.Done(c, nil, "installed nothing: cniBinDir is empty")
			}
			err = naming(path, cfg, i.InstallPlugin())
			if errors.As(err, new(*config.KeyError)) {
				return cli.Usage(err)
			}
			return cli.Done(c, err, "edgemesh-cni is in %s", cfg.CNIBinDir)
		},
	}
	addConfigFlags(c, &path, &verbose)
	c.Flags().BoolVar(&rm, "remove", false, "remove the plugin instead")
	return c
}
