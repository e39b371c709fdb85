package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"edgemesh/internal/manpage"
)

// manCommand writes the man pages of root's commands, whose program has this version.
func manCommand(root *cobra.Command, version string) *cobra.Command {
	return &cobra.Command{
		Use:     "man DIR",
		Short:   "Write the man pages into a directory",
		Long:    "Write a man page for each command into DIR, which is made if it does not exist.\nThe pages have the text of --help.",
		Example: "  " + root.DisplayName() + " man /usr/local/share/man/man1",
		Args:    Args("DIR"),
		RunE: func(c *cobra.Command, args []string) error {
			return Done(c, writePages(root, root.Name()+" "+version, args[0]), "wrote the man pages to %s", args[0])
		},
	}
}

// writePages writes the pages of c and of the commands below it that its help lists.
func writePages(c *cobra.Command, source, dir string) error {
	title := func(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }
	page := manpage.Page{Name: title(c), Source: source, Short: c.Short}
	if c.HasParent() {
		page.Also = append(page.Also, title(c.Parent()))
	}
	for _, sub := range c.Commands() {
		if !sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
			continue
		}
		page.Also = append(page.Also, title(sub))
		if err := writePages(sub, source, dir); err != nil {
			return err
		}
	}
	var help strings.Builder
	out := c.OutOrStdout()
	c.SetOut(&help)
	err := c.Help()
	c.SetOut(out)
	if err != nil {
		return err
	}
	page.Help = help.String()
	return page.Write(dir)
}
