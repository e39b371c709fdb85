package ipam

import (
	"os"
	"path/filepath"

	"edgemesh/cni/fault"
)

// FS is the folder of records, as far as the store needs it. Names have no
// slash. WriteSync returns after the content is on the disk, SyncDir after
// all names are; the others promise nothing in case of a power cut.
type FS interface {
	ReadDir() ([]string, error)
	ReadFile(name string) ([]byte, error)
	WriteSync(name string, content []byte) error
	Rename(from, to string) error
	Remove(name string) error
	SyncDir() error
}

// dirFS is a real folder.
type dirFS struct{ path string }

var _ FS = dirFS{}

func (d dirFS) ReadDir() ([]string, error) {
	f, err := os.Open(d.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

func (d dirFS) ReadFile(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(d.path, name))
}

func (d dirFS) WriteSync(name string, content []byte) error {
	fault.Point("write")
	f, err := os.OpenFile(filepath.Join(d.path, name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	fault.Point("created")
	_, err = f.Write(content)
	fault.Point("written")
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	fault.Point("synced")
	return err
}

func (d dirFS) Rename(from, to string) error {
	err := os.Rename(filepath.Join(d.path, from), filepath.Join(d.path, to))
	fault.Point("renamed")
	return err
}

func (d dirFS) Remove(name string) error {
	err := os.Remove(filepath.Join(d.path, name))
	fault.Point("removed")
	return err
}

func (d dirFS) SyncDir() error {
	f, err := os.Open(d.path)
	if err != nil {
		return err
	}
	defer f.Close()
	err = f.Sync()
	fault.Point("dir synced")
	return err
}
