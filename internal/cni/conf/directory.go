package conf

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"edgemesh/internal/durable"
)

// DirectoryFile is in the directory with the records; its content, which is random, tells the agent and the plugin that they mean the same
// one, whatever path each has to it.
const DirectoryFile = "directory"

// Directory is where the agent reads the records of pods' addresses.
type Directory struct {
	Path  string `json:"path"` // the agent's, for people
	Token string `json:"token"`
	Inode string `json:"inode"` // DEVICE:NUMBER of the directory, where its content is gone
}

// ErrElsewhere means that the agent reads another directory's records: it would not see the pod.
var ErrElsewhere = errors.New("the agent would not see the pod, and no NetworkPolicy would hold for it")

// MakeDirectory returns the directory with its token, which it makes if there is none.
func MakeDirectory(path string) (*Directory, error) {
	token, err := token(path)
	if errors.Is(err, fs.ErrNotExist) {
		token = rand.Text()
		if err = os.MkdirAll(path, 0o700); err == nil {
			err = durable.WriteFile(filepath.Join(path, DirectoryFile), []byte(token+"\n"), 0o600)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("mark %s: %w", path, err)
	}
	return &Directory{path, token, inode(path)}, nil
}

func inode(dir string) string {
	var s unix.Stat_t
	if unix.Stat(dir, &s) != nil {
		return ""
	}
	return fmt.Sprintf("%d:%d", s.Dev, s.Ino)
}

func token(dir string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, DirectoryFile))
	if err == nil && len(b) < 2 {
		err = fs.ErrNotExist
	}
	return strings.TrimSpace(string(b)), err
}

// Same returns an error that wraps ErrElsewhere unless dataDir is the agent's directory. nil, of an agent before it, is any.
func (d *Directory) Same(dataDir string) error {
	if d == nil || d.Token == "" {
		return nil
	}
	have, err := token(dataDir)
	if have == d.Token || errors.Is(err, fs.ErrNotExist) && d.Inode != "" && inode(dataDir) == d.Inode {
		return nil
	}
	return fmt.Errorf("%w: this plugin keeps its records in dataDir %s, the agent reads those in cniDataDir %s", ErrElsewhere, dataDir, d.Path)
}
