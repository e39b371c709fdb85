// Package self holds the commands that agent and relay have about themselves.
//
//	id.go       the peer ID, and the key it comes from
//	version.go  versions of the program, its protocols and formats
package self

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/spf13/cobra"

	"edgemesh/internal/cli"
	"edgemesh/internal/config"
	"edgemesh/internal/keyfile"
)

// ID is the command that prints the peer ID of this machine; who is "node" or "relay".
func ID(program, who, defaultStateDir string) *cobra.Command {
	var stateDir string
	c := &cobra.Command{
		Use:   "id",
		Short: fmt.Sprintf("Print this %s's peer ID; create its key if there is none", who),
		Long: fmt.Sprintf(`Print this %s's peer ID, and nothing else; that a key was created is said on
standard error. The key is created once, in STATE-DIR/identity.key (mode 0600),
and is the %[1]s's identity from then on. The directory above STATE-DIR must exist:
a mistyped path gets no key.`, who),
		Example: "  " + program + " id --state-dir " + defaultStateDir,
		Args:    cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			parent := filepath.Dir(filepath.Clean(stateDir))
			if _, err := os.Stat(parent); errors.Is(err, fs.ErrNotExist) {
				return cli.Usage(fmt.Errorf("--state-dir %s: there is no directory %s; check the path, or create that directory first", stateDir, parent))
			}
			file := filepath.Join(stateDir, keyfile.Name)
			_, missing := os.Lstat(file)
			id, err := PeerID("--state-dir", stateDir)
			if err != nil {
				return err
			}
			if errors.Is(missing, fs.ErrNotExist) {
				fmt.Fprintf(c.ErrOrStderr(), "created the key of this %s: %s\n", who, file)
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), id)
			return err
		},
	}
	c.Flags().StringVar(&stateDir, "state-dir", defaultStateDir, "state directory that holds identity.key")
	return c
}

// PeerID is the peer ID of the key in stateDir, which it creates if there is none; errors as of LoadKey.
func PeerID(name, stateDir string) (string, error) {
	key, err := LoadKey(name, stateDir)
	if err != nil {
		return "", err
	}
	id, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return "", fmt.Errorf("derive peer ID: %w", err)
	}
	return id.String(), nil
}

// LoadKey is keyfile.LoadOrCreate; an error that the operator has to fix is a usage
// error. name is the flag or key that set stateDir.
func LoadKey(name, stateDir string) (crypto.PrivKey, error) {
	key, err := keyfile.LoadOrCreate(stateDir)
	if err == nil {
		return key, nil
	}
	if err := config.MakeDir(name, stateDir, 0o700); err != nil {
		return nil, cli.Usage(err)
	}
	if errors.Is(err, keyfile.ErrPermissions) || errors.Is(err, keyfile.ErrCorrupt) || errors.Is(err, fs.ErrPermission) {
		return nil, cli.Usage(err)
	}
	return nil, err
}
