package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manCommand writes the man pages of root's commands, whose program has this version.
func manCommand(root *cobra.Command, version string) *cobra.Command {
	return &cobra.Command{
		Use:   "man DIR",
		Short: "Write the man pages into a directory",
		Long: `Write a man page for each command into DIR, which is made if it does not exist.
The pages are made from the same text as --help.`,
		Example: "  " + root.Name() + " man /usr/local/share/man/man1",
		Args:    Args("DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("man pages: %w", err)
			}
			root.DisableAutoGenTag = true // the date would differ in every build
			err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: root.Name() + " " + version, Manual: "EdgeMesh"}, args[0])
			if err != nil {
				return fmt.Errorf("man pages: %w", err)
			}
			return nil
		},
	}
}
