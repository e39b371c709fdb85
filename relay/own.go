package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"edgemesh/internal/cli"
)

// newOwn is the command that an init container runs as root, so that the relay itself need not.
func newOwn() *cobra.Command {
	var stateDir string
	var user int
	c := &cobra.Command{
		Use:   "own",
		Short: "Give the state directory to the user that the relay runs as",
		Long: `Give the state directory, and what is in it, to the user that the relay runs as; create
it if there is none. A relay in Kubernetes runs as a user without privileges, and its
directory on the node belongs to root at first, or to what the relay ran as before.`,
		Example: "  " + program + " own --state-dir " + defaultStateDir + " --user 65532",
		Args:    cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			if user < 0 {
				return cli.Usage(fmt.Errorf("--user: %d is not the number of a user", user))
			}
			return cli.Done(c, own(stateDir, user), "%s belongs to user %d", stateDir, user)
		},
	}
	c.Flags().StringVar(&stateDir, "state-dir", defaultStateDir, "state directory that holds identity.key")
	c.Flags().IntVar(&user, "user", -1, "the user's number; its group has the same")
	return c
}

// own gives dir, with the files in it, to user. What is in it may have been put there by that user: links are not
// followed, and nothing outside of dir is changed.
func own(dir string, user int) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Nlink > 1 && !d.IsDir() {
			return errors.New(path + " has a second name, perhaps outside of the state directory; remove it")
		}
		if path == "." && info.Mode().Perm() != 0o700 {
			if err := root.Chmod(path, 0o700); err != nil { // before it is another user's
				return err
			}
		}
		return root.Lchown(path, user, user)
	})
}
