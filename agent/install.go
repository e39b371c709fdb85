package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"edgemesh/agent/cli"
	"edgemesh/agent/config"
	"edgemesh/agent/daemon"
	"edgemesh/agent/install"
)

// stopTimeout is how long uninstall waits for the agent to end: kubelet looks for
// static pods that are gone every 20 s.
const stopTimeout = time.Minute

func newInstall() *cobra.Command {
	var o install.Options
	c := &cobra.Command{
		Use:   "install",
		Short: "Install the agent on this host as a systemd unit or a static pod",
		Long: `Install the agent outside of the cluster's control. A DaemonSet's pod does not start
while the API cannot be reached; these two forms do, so that a node which boots with
no uplink has its pod network.

  --form systemd     copies this binary and edgemesh-cni from beside it to PREFIX/bin,
                     writes a unit, enables and (re)starts it; needs no container runtime
  --form static-pod  writes a pod into kubelet's folder of static pods, with what the
                     configuration names mounted in it; needs the image

It writes ` + config.DefaultPath + ` where there is none. Run it again to upgrade: what you
have changed by hand is kept, and said. Where there is no systemd it says what to run.`,
		Example: `  edgemesh-agent install
  edgemesh-agent install --membership /etc/edgemesh/cluster.yaml
  edgemesh-agent install --form static-pod --image registry.example.org/edgemesh-agent:0.1.0`,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := host(c, &o); err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this binary: %w", err)
			}
			o.Binary = self
			return installError(install.Install(c.Context(), o))
		},
	}
	addHostFlags(c, &o)
	c.Flags().StringVar((*string)(&o.Form), "form", string(install.Systemd), "systemd or static-pod")
	c.Flags().StringVar(&o.Prefix, "prefix", "/usr/local", "binaries go to PREFIX/bin")
	c.Flags().StringVar(&o.PodDir, "pod-dir", "", "kubelet's folder of static pods (default: kubeadm's, or k3s's where that is)")
	c.Flags().StringVar(&o.Image, "image", "", "image of the static pod (default: this release's)")
	c.Flags().StringVar(&o.NodeName, "node-name", "", "the node's name, where it is not the host's")
	c.Flags().StringVar(&o.Membership, "membership", "", "membership file for a new configuration")
	c.Flags().StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig for a new configuration (default: kubelet's, where there is one)")
	return c
}

func newUninstall() *cobra.Command {
	var o install.Options
	var verbose bool
	c := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove what install wrote, and what the agent has set up",
		Long: `Stop the agent, remove interfaces, routes, rules, firewall chains and the CNI
configuration, restore the sysctls, and remove the files that install wrote; those
changed since are kept, and said. Pods lose their network. The node's key stays, so
that a node which comes back is the same one.`,
		Example: `  edgemesh-agent uninstall
  edgemesh-agent uninstall --purge           # nothing stays: key, pods' addresses, changed files
  edgemesh-agent uninstall --keep-network    # back to the DaemonSet: its pod takes over, flows go on`,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			log := newLogger(verbose)
			cfg, err := cleanupConfig(config.DefaultPath, false, log)
			if err != nil {
				// A broken configuration must not keep the agent on the host.
				log.Warn("the configuration cannot be used", "err", err)
				cfg, _ = cleanupConfig("/nonexistent", false, log)
			}
			if err := host(c, &o); err != nil {
				return err
			}
			o.DataDir = cfg.CNIDataDir
			if o.Root == "/" {
				o.Cleanup = func(ctx context.Context) error {
					// Half a clean-up is worse than a late one: a signal does not end it.
					ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
					defer cancel()
					lock, err := daemon.WaitStateDir(ctx, cfg.StateDir, log)
					if err != nil {
						return fmt.Errorf("the agent still runs: stop it, and run this again (%w)", err)
					}
					lock.Release()
					return daemon.Cleanup(ctx, cfg, o.Purge, log)
				}
			}
			return installError(install.Uninstall(c.Context(), o))
		},
	}
	addHostFlags(c, &o)
	c.Flags().BoolVar(&o.Purge, "purge", false, "also remove the node's key, the pods' addresses and changed files")
	c.Flags().BoolVar(&o.KeepNetwork, "keep-network", false, "leave what the agent has set up to another form of it, which stands by")
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "log details")
	return c
}

func addHostFlags(c *cobra.Command, o *install.Options) {
	o.StateDir = config.DefaultStateDir
	c.Flags().StringVar(&o.Root, "root", "/", "root directory of the host, for images and containers")
}

// host fills in what depends on the host.
func host(c *cobra.Command, o *install.Options) error {
	o.Out = c.OutOrStdout()
	if o.Root != "/" {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("not root (uid %d): run it as root, or give another --root", os.Geteuid())
	}
	// As sd_booted(3) has it.
	if fi, err := os.Lstat("/run/systemd/system"); err == nil && fi.IsDir() {
		o.Systemctl = systemctl
	}
	return nil
}

func systemctl(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

func installError(err error) error {
	if errors.Is(err, install.ErrBadOption) || errors.Is(err, install.ErrOtherForm) || errors.Is(err, install.ErrUnfit) {
		return cli.Usage(err)
	}
	return err
}
