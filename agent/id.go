package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/spf13/cobra"

	"edgemesh/agent/config"
	"edgemesh/tunnel/p2p/identity"
)

func newID() *cobra.Command {
	var stateDir string
	c := &cobra.Command{
		Use:   "id",
		Short: "Print this node's peer ID; make its key first if there is none",
		Long: `Print this node's peer ID, and nothing else. The key is made once, in
STATE-DIR/identity.key (mode 0600), and is the node's identity from then on.`,
		Example: "  edgemesh-agent id --state-dir /var/lib/edgemesh",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			key, err := identity.LoadOrCreate(stateDir)
			if err != nil {
				return keyError(stateDir, err)
			}
			id, err := peer.IDFromPrivateKey(key)
			if err != nil {
				return fmt.Errorf("derive peer ID: %w", err)
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), id)
			return err
		},
	}
	c.Flags().StringVar(&stateDir, "state-dir", config.DefaultStateDir, "state directory that holds identity.key")
	return c
}

// keyError grades an error of the key file: what the user has to mend is bad
// configuration, the rest is the system's fault.
func keyError(stateDir string, err error) error {
	if dir := config.MakeDir("--state-dir", stateDir, 0o700); dir != nil {
		return usageError(dir)
	}
	if errors.Is(err, identity.ErrPermissions) || errors.Is(err, identity.ErrCorrupt) || errors.Is(err, fs.ErrPermission) {
		return usageError(err)
	}
	return err
}
