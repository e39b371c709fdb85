package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"edgemesh/agent/controller"
	"edgemesh/internal/cli"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/version"
)

func newController() *cobra.Command {
	var cfg controller.Config
	var verbose bool
	c := &cobra.Command{
		Use:   "controller",
		Short: "Run the controller: one per cluster, it removes address blocks that a node must not claim",
		Long: `Run the controller in the foreground until SIGTERM. It runs in the cloud, as a Deployment
of the chart. Of any number of controllers one leads, by the Lease edgemesh-controller; when it
ends, another one takes over, within 7 s after a crash.

The leader deletes the PodBlocks that a node claims beyond the two of each IP version that
count, within seconds, and its log names the node. Agents and relays ignore these blocks
anyway; deleting them keeps addresses free for other nodes.

With --enroll it also writes for edges what their local cache of the API cannot. They send requests over the
relays of the PodNetwork, whose status it has name it, and prove who they are by the certificate
of kubelet or of KubeEdge's edgecore. Its key is the Secret edgemesh-controller in its namespace;
the first leader makes it.

With --sign the leader signs with the same key who is a member, in the NodeRecords, and who is banned
or gone, in the PodNetwork's status, which names the key (signer). Relays that pin it need nothing
else. Nodes that pin another key (signers) believe it within the ranges that this one has delegated
to it: its log says what to run (edgemesh-agent membership delegate).

Exit code 2: fix the command line or the access to the API; 1: anything else failed.`,
		Example: `  edgemesh-agent controller                   # in a pod, as the chart's service account
  edgemesh-agent controller --kubeconfig admin.conf --namespace kube-system \
    --metrics-address ""
  kubectl -n kube-system get lease edgemesh-controller      # which one leads`,
		Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			cfg.Version, cfg.Log = version.Number(), newLogger(verbose)
			if cfg.Identity == "" {
				host, err := os.Hostname()
				if err != nil {
					return fmt.Errorf("name this controller: %w; set --identity", err)
				}
				cfg.Identity = cmp.Or(os.Getenv("POD_NAME"), host)
			}
			err := controller.Run(c.Context(), cfg)
			if errors.Is(err, controller.ErrConfig) || errors.Is(err, client.ErrConfig) {
				return cli.Usage(err)
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.Kubeconfig, "kubeconfig", "", "kubeconfig file (default: the pod's service account)")
	f.StringVar(&cfg.Server, "server", "", "URL of the API server, instead of the kubeconfig's or the pod's")
	f.StringVar(&cfg.Namespace, "namespace", "", "namespace of the Lease (default: the pod's)")
	f.StringVar(&cfg.Identity, "identity", "", "name of this controller, different for each (default: $POD_NAME, then the host's name)")
	f.StringVar(&cfg.MetricsAddress, "metrics-address", ":9471", `HOST:PORT of /metrics, /healthz and /readyz; "" = off`)
	f.BoolVar(&cfg.Enroll, "enroll", false, "write for edges what their cache of the API cannot: they send requests over the relays, and prove by their node certificate who they are")
	f.BoolVar(&cfg.Sign, "sign", false, "sign who is a member, for relays that pin this controller's key, and for nodes that pin one which has delegated to it")
	f.String("map", "", "")
	_ = f.MarkDeprecated("map", "the controller serves no map any longer: use `kubectl edgemesh map NODE`, or edgemesh-agent map on a node; docs/map.md")
	f.StringSliceVar(&cfg.CAs, "node-ca", nil, "PEM file with a CA of nodes' certificates, besides the API server's for its clients; may be repeated")
	f.StringVar(&cfg.JoinSecretFile, "join-secret-file", "", "file with the secret that relays outside of the cluster require, as in agent.yaml")
	f.BoolVarP(&verbose, "verbose", "v", false, "log details")
	return c
}
