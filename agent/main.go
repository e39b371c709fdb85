// Command edgemesh-agent joins a node to the pod network. See the commands' help.
package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"edgemesh/agent/fleet"
	"edgemesh/internal/cli"
	"edgemesh/internal/config"
	"edgemesh/internal/self"
	"edgemesh/internal/version"
	"edgemesh/tunnel/p2p/who/identity"
)

const program = "edgemesh-agent"

func main() {
	if name := filepath.Base(os.Args[0]); name == fleet.Name || name == fleet.CompleteName {
		fleet.Main()
	}
	cli.Main(newRoot())
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:     program,
		Version: version.Number(),
		Short:   "Pod network agent: pods reach each other by IP wherever their nodes are",
		Long: `edgemesh-agent runs on every node. It carries packets between the pods of all
members: over the LAN if they share one, otherwise through an encrypted tunnel that is
dialed directly, hole-punched or relayed.`,
	}
	root.AddCommand(newRun(), newInit(), self.ID(program, "node", config.DefaultStateDir), newStatus(), newPing(), newDoctor(),
		newNetcheck(), newLogLevel(), newNodeIP(), newCleanup(), newPlugin(), newInstall(), newUninstall(), newController(),
		newConnectivity(), newConnectivityTest(), newCapture(), newMap(), newMembership(), newPolicy(),
		self.Version(program, identity.Protocols()))
	return root
}
