// Command edgemesh-agent joins a node to the pod network. See the commands' help.
package main

import (
	"github.com/spf13/cobra"

	"edgemesh/agent/cli"
	"edgemesh/agent/config"
)

const program = "edgemesh-agent"

// version is set by the linker.
var version = "dev"

func main() { cli.Main(newRoot()) }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:     program,
		Version: version,
		Short:   "Pod network agent: pods reach each other by IP wherever their nodes are",
		Long: `edgemesh-agent runs on every node. It carries packets between the pods of all
members: over the LAN if they share one, otherwise through an encrypted tunnel that is
dialed directly, hole-punched or relayed.`,
	}
	root.AddCommand(newRun(), cli.ID(program, "node", config.DefaultStateDir), newStatus(), newPing(), newDoctor(),
		newCleanup(), newInstall(), newUninstall(), cli.Version(program, version))
	return root
}
