package ipam

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/internal/cni/fault"
	"edgemesh/internal/durable"
)

// FS is the directory of records, as far as the store needs it. Names have no slash.
// WriteSync returns once the content is on the disk, SyncDir once all names are. A power
// cut may undo any of the other operations, but never half of a Rename.
type FS interface {
	ReadDir() ([]string, error)
	// ReadFile also returns when the file was last written.
	ReadFile(name string) (content []byte, modified time.Time, err error)
	WriteSync(name string, content []byte) error
	Rename(from, to string) error
	Remove(name string) error
	SyncDir() error
}

// dirFS is a real directory.
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

// maxContent is larger than any record, in bytes.
const maxContent = 64 << 10

// ReadFile bypasses package os, because each call reads all records: with thousands of
// them that halves the time. It does not wait for other kinds of file with a record's
// name, such as a pipe.
func (d dirFS) ReadFile(name string) (content []byte, modified time.Time, err error) {
	fd, err := unix.Open(filepath.Join(d.path, name), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, time.Time{}, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, time.Time{}, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	content = make([]byte, min(st.Size, maxContent))
	for n := 0; n < len(content); {
		m, err := unix.Read(fd, content[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, time.Time{}, &os.PathError{Op: "read", Path: name, Err: err}
		}
		if n += m; m == 0 { // it has become shorter
			content = content[:n]
		}
	}
	return content, time.Unix(st.Mtim.Unix()), nil
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
	err := durable.SyncDir(d.path)
	fault.Point("dir synced")
	return err
}

// syncParents returns once the name of dir, and those of the directories above it on the
// same file system, are on the disk. The process that created them may have been killed
// before it could sync.
func syncParents(dir string) error {
	for parent := filepath.Dir(dir); parent != dir; dir, parent = parent, filepath.Dir(parent) {
		if mountPoint(dir, parent) {
			break
		}
		if err := (dirFS{parent}).SyncDir(); err != nil {
			return fmt.Errorf("sync %s: %w", parent, err)
		}
		fault.Point("parent synced")
	}
	return nil
}

// mountPoint reports whether dir and its parent are on different file systems.
func mountPoint(dir, parent string) bool {
	var a, b unix.Stat_t
	return unix.Stat(dir, &a) == nil && unix.Stat(parent, &b) == nil && a.Dev != b.Dev
}

// lockWait bounds the wait for the lock. A holder makes a few writes and removes at most
// an interface; the lock of a killed holder is released. When a node comes back, each of its pods waits for those before it, 200 of
// them for half a minute on a small machine; kubelet waits 4 minutes (twice its runtimeRequestTimeout) for a sandbox.
const lockWait = time.Minute

// lockDir takes the exclusive flock of the directory itself, so that there is no lock
// file among the records.
func lockDir(dir string, wait time.Duration) (unlock func() error, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock the address store: %w", err)
	}
	got := make(chan error, 1)
	go func() {
		for {
			err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
			if !errors.Is(err, syscall.EINTR) {
				got <- err
				return
			}
		}
	}()
	select {
	case err = <-got:
	case <-time.After(wait):
		// flock(2) cannot be cancelled; if it succeeds later, the lock is released.
		go func() {
			<-got
			f.Close()
		}()
		return nil, fmt.Errorf("%w: %s for %s", ErrBusy, dir, wait)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the address store %s: %w", dir, err)
	}
	return f.Close, nil
}
