// Package snapshot stores the last good membership on disk, so that a node which
// reboots offline knows its blocks and its peers.
//
//	snapshot.go   Save, Load, and the Keeper of a running program
//	whole.go      the file with a whole membership
//	changes.go    the file with what has changed since
package snapshot

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"edgemesh/internal/durable"
	"edgemesh/internal/membership/mesh"
)

const (
	// File is the name of the snapshot inside a state directory.
	File = "membership.json"
	// ChangesFile is the name of the changes since, beside it. Without it, or with one of another File, the snapshot is as
	// good as it was when it was written.
	ChangesFile = "membership.changes"
	// Version of the envelope; a reader refuses others.
	Version = 1
	// maxSize bounds the file, in bytes; 100,000 members of two blocks and a site take 25 MB.
	maxSize = 64 << 20
	// leastChanges is how many bytes of changes there may be beside any File; half its size is allowed.
	leastChanges = 64 << 10
	// wholeAfter is how long older versions, which do not know changes, may take members for such that have left.
	wholeAfter = time.Hour
)

// ErrTorn means that the snapshot is not what Save wrote: it was cut short by a power
// failure, edited, or written by another program.
var ErrTorn = errors.New("snapshot is torn or not ours")

// Save makes s the snapshot in dir. When it returns nil, s has been read back and
// survives a power cut; on an error the previous snapshot is still there. It does not
// write if the snapshot already is s, because flash wears out.
func Save(dir string, s mesh.State) error {
	return (&Keeper{Dir: dir}).Save(s)
}

// Load returns the snapshot in dir. The error wraps fs.ErrNotExist if there is none,
// and ErrTorn if it cannot be trusted. Of changes that a power cut tore, those before count.
func Load(dir string) (mesh.State, error) {
	path := filepath.Join(dir, File)
	s, sum, err := readWhole(path)
	if err != nil {
		return mesh.State{}, err
	}
	if s, err = replay(filepath.Join(dir, ChangesFile), s, sum); err == nil {
		err = s.Validate()
	}
	if err != nil {
		return mesh.State{}, torn(path, err)
	}
	return s, nil
}

func torn(path string, err error) error {
	return fmt.Errorf("load snapshot %s: %w: %w", path, ErrTorn, err)
}

// Keeper saves one membership after the other: what changed is appended, until that is so much that the whole is written
// again. It belongs to one goroutine.
type Keeper struct {
	Dir string

	known   bool       // the rest is what is on the disk
	unsaved bool       // state was to be saved, and is not
	state   mesh.State // all of it
	last    digest     // of the last change, or of the whole
	size    int64      // bytes of File
	changes int64      // and of ChangesFile
	written time.Time  // when File was
}

// digest is a SHA-256.
type digest = [sha256.Size]byte

// Save is the package's Save. What the first one writes is the whole.
func (k *Keeper) Save(s mesh.State) error { return k.SaveStep(s, mesh.Plan{}, mesh.Plan{}) }

// SaveStep is Save for a caller that has the plans of the State saved last and of s: what they know of the change is not
// searched for again. What statements let count is not saved, but what the source says.
func (k *Keeper) SaveStep(s mesh.State, was, now mesh.Plan) error {
	s = s.Said()
	err := k.save(s, was, now)
	k.known, k.unsaved, k.state = err == nil, err != nil, s
	if err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	return nil
}

// Close writes the whole if there are changes, which older versions do not know, or if the last Save failed.
func (k *Keeper) Close() error {
	if k.changes == 0 && !k.unsaved {
		return nil
	}
	if err := k.saveWhole(k.state); err != nil {
		k.unsaved = true
		return fmt.Errorf("save snapshot: %w", err)
	}
	k.known, k.unsaved = true, false
	return nil
}

func (k *Keeper) save(s mesh.State, was, now mesh.Plan) error {
	if !k.known {
		return k.saveWhole(s)
	}
	var c change
	if identical(was.Nodes, k.state.Nodes) && identical(now.Nodes, s.Nodes) {
		c.Nodes = now.Since(was)
	} else {
		c.Nodes = mesh.Diff(k.state.Nodes, s.Nodes)
	}
	if !reflect.DeepEqual(settings(k.state), settings(s)) {
		return k.saveWhole(s) // bans are among them: older versions have to know
	}
	if c.Nodes.Empty() {
		return nil
	}
	if time.Since(k.written) > wholeAfter && c.removes() {
		return k.saveWhole(s)
	}
	line, sum, err := c.encode(k.last)
	if err != nil {
		return err
	}
	if k.changes+int64(len(line)) > max(k.size/2, leastChanges) {
		return k.saveWhole(s)
	}
	if err := add(filepath.Join(k.Dir, ChangesFile), line, k.changes); err != nil {
		if failed := k.saveWhole(s); failed != nil {
			return errors.Join(err, failed)
		}
		return nil // perhaps there was half a change; now there is none
	}
	k.last, k.changes = sum, k.changes+int64(len(line))
	return nil
}

// saveWhole writes File, unless it has s already and there are no changes.
func (k *Keeper) saveWhole(s mesh.State) error {
	k.known = false
	path, changes := filepath.Join(k.Dir, File), filepath.Join(k.Dir, ChangesFile)
	w := whole{state: s}
	var err error
	if k.last, k.size, err = w.digest(); err != nil {
		return err
	}
	if k.size > maxSize {
		return fmt.Errorf("%s: it would have %d bytes, and at most %d are read", path, k.size, maxSize)
	}
	k.changes = 0
	if _, err := os.Lstat(changes); errors.Is(err, os.ErrNotExist) && w.isIn(path, k.last, k.size) {
		return nil
	}
	if err := durable.Write(path, 0o600, w.write); err != nil {
		return err
	}
	k.written = time.Now()
	// Changes of another whole are read by nobody, but this one may be the one that they were made on.
	if err := os.Remove(changes); errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return durable.SyncDir(k.Dir)
}

// identical reports whether two lists are the same memory.
func identical(a, b []mesh.Node) bool { return len(a) > 0 && len(a) == len(b) && &a[0] == &b[0] }

// settings is what is saved of s, without nodes.
func settings(s mesh.State) mesh.State {
	s.Nodes, s.Signed, s.News = nil, nil, nil
	return s
}
