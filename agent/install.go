package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"edgemesh/agent/daemon"
	"edgemesh/agent/install"
	"edgemesh/internal/cli"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/nodeip"
	"edgemesh/internal/placed"
	"edgemesh/internal/resolve"
	"edgemesh/tunnel/tun"
)

// stopTimeout is how long uninstall waits for the agent to end: kubelet notices a
// removed static pod within 20 s.
const stopTimeout = time.Minute

func newInstall() *cobra.Command {
	var o install.Options
	c := &cobra.Command{
		Use:   "install",
		Short: "Install the agent on this host as a systemd unit or a static pod",
		Long: `Install the agent so that it starts without the cluster. A DaemonSet's pod does not
start while the API is unreachable; these two forms do, so a node that boots offline
has its pod network.

  --form systemd     copies this binary, and edgemesh-cni from the same directory, to
                     PREFIX/bin; writes a unit, enables it and (re)starts it; needs no
                     container runtime
  --form static-pod  writes a pod to kubelet's static pod directory and mounts the paths
                     that the configuration names; needs the image

Writes ` + config.DefaultPath + ` if there is none. Run it again to upgrade: files you
have changed are kept and listed. Without systemd it prints the commands to run.

With --node-ip the node's address in the cluster becomes its mesh address, by which
kubectl logs, exec and all other nodes reach it across NATs: a drop-in for kubelet's
unit, or k3s's configuration, and one restart of kubelet. The node must have joined
before, and an agent must have run here, because its block is known only then.`,
		Example: `  edgemesh-agent install
  edgemesh-agent install --node-ip                            # when the node has joined
  edgemesh-agent install --node-ip --form daemonset           # nothing else: the cluster runs the agent
  edgemesh-agent install --membership /etc/edgemesh/cluster.yaml
  edgemesh-agent install --server http://127.0.0.1:10550      # an API cache on the node
  edgemesh-agent install --form static-pod \
    --image registry.example.org/edgemesh-agent:0.2.0`,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := host(c, &o); err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this binary: %w", err)
			}
			o.Binary, o.Forget = self, daemon.Forget
			if o.Root == "/" {
				o.Version = apiVersion
				o.TUN = tun.Available
			}
			return installError(install.Install(c.Context(), o))
		},
	}
	addHostFlags(c, &o)
	c.Flags().StringVar((*string)(&o.Form), "form", string(install.Systemd), "systemd, static-pod, or daemonset: the cluster runs the agent, only --node-ip is set up")
	c.Flags().StringVar(&o.Prefix, "prefix", "/usr/local", "binaries go to PREFIX/bin")
	c.Flags().StringVar(&o.PodDir, "pod-dir", "", "kubelet's static pod directory (default: kubeadm's, or that of k3s or edgecore if they are there)")
	c.Flags().StringVar(&o.Image, "image", "", "image of the static pod (default: the one of this release)")
	c.Flags().StringVar(&o.NodeName, "node-name", "", "the node's name, if it differs from the host name")
	c.Flags().StringVar(&o.Membership, "membership", "", "membership file to put into a new configuration")
	c.Flags().BoolVar(&o.IfCloned, "if-cloned", false, "give a copied machine, whose hardware is not that on which its key was made, a new key")
	c.Flags().StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig to put into a new configuration (default: kubelet's, if it exists)")
	c.Flags().StringVar((*string)(&o.NodeIP), "node-ip", "", "have kubelet report the node's mesh address: on, or off to take that back (default: as it is)")
	c.Flags().Lookup("node-ip").NoOptDefVal = string(install.NodeIPMesh)
	c.Flags().StringVar(&o.Server, "server", "", "API without a kubeconfig to put into a new configuration (default on an edge of KubeEdge: "+client.MetaServer+")")
	return c
}

// apiVersion fetches an API's version.
func apiVersion(ctx context.Context, a client.Access) (string, error) {
	a.Names = resolve.New(resolve.Config{})
	defer a.Names.Close()
	c, err := client.New(a, "edgemesh-agent/install", nil)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return c.Version(ctx)
}

func newUninstall() *cobra.Command {
	var o install.Options
	var verbose bool
	c := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove what install wrote and what the agent set up",
		Long: `Stop the agent; remove interfaces, routes, rules, firewall chains and the CNI
configuration; restore the sysctls; remove the files that install wrote, except those
changed since, which are listed. Pods lose their network. The node's key stays, so a
node that is installed again keeps its identity.`,
		Example: `  edgemesh-agent uninstall
  edgemesh-agent uninstall --purge           # keep nothing: not the key, the pods' addresses or changed files
  edgemesh-agent uninstall --keep-network    # back to the DaemonSet: its pod takes over without interruption`,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			log := newLogger(verbose)
			cfg, err := cleanupConfig(filepath.Join(o.Root, config.DefaultPath), false, log)
			if err != nil {
				// A broken configuration must not keep the agent on the host.
				cfg = defaultDirs(log, "configuration unusable: cleaning the default directories", "err", err)
			}
			if err := host(c, &o); err != nil {
				return err
			}
			o.DataDir = cfg.CNIDataDir
			if o.Root == "/" {
				o.Cleanup = func(ctx context.Context) error {
					// Half a cleanup is worse than a late one: a signal does not end it.
					ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
					defer cancel()
					lock, err := daemon.WaitStateDir(ctx, cfg.StateDir, func() {}, log)
					if err != nil {
						return fmt.Errorf("the agent is still running: stop it, then run uninstall again (%w)", err)
					}
					lock.Release()
					return daemon.Cleanup(ctx, cfg, o.Purge, log)
				}
			}
			if o.Root != "/" {
				o.Files = func() error { return daemon.CleanupFiles(cfg, o.Root, o.Purge, log) }
			}
			return installError(install.Uninstall(c.Context(), o))
		},
	}
	addHostFlags(c, &o)
	c.Flags().BoolVar(&o.Purge, "purge", false, "also remove the node's key, the pods' addresses and files changed since")
	c.Flags().BoolVar(&o.KeepNetwork, "keep-network", false, "leave interfaces, routes and rules for another form of the agent, which is standing by")
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "log details")
	return c
}

func addHostFlags(c *cobra.Command, o *install.Options) {
	o.StateDir = config.DefaultStateDir
	c.Flags().StringVar(&o.Root, "root", "/", "root directory of the host, when run from an image or a container")
}

// host fills in what depends on the host.
func host(c *cobra.Command, o *install.Options) error {
	o.Out = c.OutOrStdout()
	var err error
	if o.Root, err = filepath.Abs(o.Root); err != nil || o.Root != "/" {
		return err
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("not root (uid %d): run as root, or choose another --root", os.Geteuid())
	}
	o.Systemctl = placed.Systemctl()
	return nil
}

func installError(err error) error {
	if errors.Is(err, nodeip.ErrNoBlock) {
		return err
	}
	if errors.Is(err, install.ErrBadOption) || errors.Is(err, install.ErrOtherForm) || errors.Is(err, install.ErrUnfit) || errors.Is(err, client.ErrTooOld) {
		return cli.Usage(err)
	}
	return err
}
