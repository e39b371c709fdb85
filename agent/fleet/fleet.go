// Package fleet is the kubectl plugin: `kubectl edgemesh` queries the agents of all nodes. It finds them through the API and
// speaks to them with `kubectl exec`, so it has the operator's access and no other, and runs wherever kubectl does: it
// imports nothing that only Linux has.
//
//	fleet.go    the commands
//	kubectl.go  calls of kubectl: which agents there are, and what they answer
//	status.go   all nodes on one screen
//	doctor.go   what is wrong with any of them
//	map.go      a node's map, here
//	relay.go    the PodNetwork's relays
//	connectivity.go  pods on all nodes query each other; testpods.go: those pods
package fleet

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"edgemesh/internal/cli"
	"edgemesh/internal/version"
)

// Name is the program's, by which kubectl finds it; CompleteName is that by which kubectl's completion does.
const (
	Name         = "kubectl-edgemesh"
	CompleteName = "kubectl_complete-edgemesh"
)

// Main runs the program.
func Main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	args := os.Args[1:]
	if filepath.Base(os.Args[0]) == CompleteName {
		args = append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	os.Exit(Execute(ctx, args, os.Stdin, os.Stdout, os.Stderr)) //nolint:gocritic // stop only gives back a signal
}

// Execute runs a command line and returns the exit code: 0, 1 if something is broken or failed, 2 for a mistake in it, or that
// of the agent's command.
func Execute(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetIn(stdin)
	return cli.Execute(ctx, root, args, stdout, stderr)
}

func newRoot() *cobra.Command {
	var c cluster
	root := &cobra.Command{
		Use:   Name,
		Short: "The pod network of the whole cluster",
		Long: `kubectl edgemesh shows the pod network of the whole cluster. It queries the agents through the
API server (kubectl exec), and needs the rights to list MeshNodes and pods and to exec into
the agents' pods. Agents that run as units have no pod, and the API server reaches no node
behind a NAT unless its kubelet reports its mesh address (docs/node-addresses.md): such nodes
are shown as the others see them.`,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl edgemesh"},
		Version:     version.Number(),
	}
	f := root.PersistentFlags()
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "kubectl's configuration file")
	f.StringVar(&c.context, "context", "", "kubectl's context")
	f.StringVarP(&c.namespace, "namespace", "n", "kube-system", "namespace of the agents")
	f.DurationVar(&c.timeout, "timeout", 20*time.Second, "how long each agent may take to answer")
	root.AddCommand(newStatus(&c), newDoctor(&c), newConnectivityTest(&c), newMap(&c), newRelay(&c), newVersion(), pass(&c, &cobra.Command{
		Use:   "ping NODE TARGET [OPTIONS]",
		Short: "Have NODE's agent ping a node or a pod's IP",
		Example: `  kubectl edgemesh ping edge-1 edge-2
  kubectl edgemesh ping edge-1 10.244.2.7 --count 10`,
	}, 2), pass(&c, &cobra.Command{
		Use:     "netcheck NODE [OPTIONS]",
		Short:   "Have NODE measure what its network lets through",
		Example: "  kubectl edgemesh netcheck edge-1",
	}, 1), pass(&c, &cobra.Command{
		Use:   "capture NODE [OPTIONS]",
		Short: "Have NODE show the packets that pods send each other, or write them to a file here",
		Example: `  kubectl edgemesh capture edge-1 --peer edge-2
  kubectl edgemesh capture edge-1 --pod 10.244.2.7 --write pod.pcapng`,
	}, 1))
	return root
}

// newVersion prints the plugin's version; status has the agents'.
func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the plugin's version, commit and date; status has the agents' versions",
		Example: "  kubectl edgemesh version\n  kubectl edgemesh --version    # the number alone",
		Args:    cli.Args(),
		RunE:    func(c *cobra.Command, _ []string) error { return version.Print(c.OutOrStdout()) },
	}
}

// pass makes c a command of the agent on the node that the first argument names. It has at least so many arguments; options
// behind them are the agent's.
func pass(k *cluster, c *cobra.Command, least int) *cobra.Command {
	c.Flags().SetInterspersed(false)
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) < least {
			return cli.BadUsage(c, fmt.Errorf("%s is missing", strings.Join(strings.Fields(c.Use)[1+len(args):1+least], " ")))
		}
		return nil
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		return k.pass(c, args[0], append([]string{c.Name()}, args[1:]...)...)
	}
	return c
}
