// Package manpage makes man pages of commands from the text of their help.
package manpage

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Long and Short describe a command that calls Write.
const (
	Short = "Write the man pages into a directory"
	Long  = `Write a man page for each command into DIR, which is made if it does not exist.
The pages are made from the same text as --help.`
)

// Write writes a page for root, whose program has this version, and for each of its commands into dir.
func Write(root *cobra.Command, version, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("man pages: %w", err)
	}
	root.DisableAutoGenTag = true // the date would differ in every build
	if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: root.Name() + " " + version, Manual: "EdgeMesh"}, dir); err != nil {
		return fmt.Errorf("man pages: %w", err)
	}
	return nil
}
