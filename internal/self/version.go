package self

import (
	"strconv"

	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/spf13/cobra"

	"edgemesh/internal/cli"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/snapshot"
	"edgemesh/internal/version"
)

// Version is the command that prints the version, and what agent and relay have to have in common.
func Version(program string, protocols []protocol.ID) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print version, commit, date, and the versions of protocols and formats",
		Long: `Print version and commit in the first line, then commit and date of the build, and the versions
of what it shares with others: protocols with agents and relays, objects with the API,
the snapshot of the membership with its next version.`,
		Example: "  " + program + " version\n  " + program + " --version      # the number alone",
		Args:    cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			var names []string
			for _, p := range protocols {
				names = append(names, string(p))
			}
			return version.Print(c.OutOrStdout(),
				version.Knows{What: "protocols", Versions: names},
				version.Knows{What: "API", Versions: []string{api.Group + "/" + api.Version}},
				version.Knows{What: "snapshot", Versions: []string{strconv.Itoa(snapshot.Version)}})
		},
	}
}
