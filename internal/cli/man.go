package cli

import (
	"github.com/spf13/cobra"

	"edgemesh/internal/manpage"
)

// manCommand writes the man pages of root's commands, whose program has this version.
func manCommand(root *cobra.Command, version string) *cobra.Command {
	return &cobra.Command{
		Use:     "man DIR",
		Short:   manpage.Short,
		Long:    manpage.Long,
		Example: "  " + root.DisplayName() + " man /usr/local/share/man/man1",
		Args:    Args("DIR"),
		RunE: func(c *cobra.Command, args []string) error {
			return Done(c, manpage.Write(root, version, args[0]), "wrote the man pages to %s", args[0])
		},
	}
}
