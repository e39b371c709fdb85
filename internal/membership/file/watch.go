package file

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"edgemesh/internal/membership/mesh"
)

const (
	// pollInterval bounds how late a change is noticed that the kernel does not report:
	// a replaced directory, a symlink's target, a network file system. Where none of these is in play, restInterval does.
	pollInterval = 1500 * time.Millisecond
	restInterval = 15 * time.Second
	// debounce is how long a file must stay the same before it is read, so that
	// one that is being written does not count as a shorter membership.
	debounce = 200 * time.Millisecond
	// patience is after how long one is read that never stops changing.
	patience = 500 * time.Millisecond
)

// Watch reads path now and after each change, and calls onState with the membership if it
// differs from the last one, within 2 s of the change. For a missing or broken file it
// calls onErr, once per cause, and the last good membership stays in force; when the file
// is good again it calls onState even if nothing else changed. Watch calls from one
// goroutine and returns when ctx ends.
func Watch(ctx context.Context, path string, onState func(mesh.State), onErr func(error)) {
	r := reader{path: path, onState: onState, onErr: onErr}
	Follow(ctx, path, r.read)
}

// Follow calls read now and within 2 s of each change of a file, from one goroutine, until ctx ends. It notices changes by
// writing, by rename and by symlink swap (as in ConfigMap volumes).
func Follow(ctx context.Context, path string, read func()) {
	w := watcher{path: path}
	// Without inotify, whose instances are few and shared, polling still keeps the
	// promise.
	var events chan fsnotify.Event
	var problems chan error
	if fs, err := fsnotify.NewWatcher(); err == nil {
		defer fs.Close()
		w.fs, events, problems = fs, fs.Events, fs.Errors
	}
	poll := time.NewTimer(pollInterval)
	defer poll.Stop()
	quiet := time.NewTimer(0)
	defer quiet.Stop()
	w.addDirectory()
	for {
		select {
		case <-ctx.Done():
			return
		case <-events: // also of the directory itself, which may be another one now, under the same number
			w.watched = stamp{}
			w.addDirectory()
			w.look(quiet)
			poll.Reset(pollInterval)
		case <-problems: // an overflow at worst; the poll covers it
		case <-poll.C:
			w.addDirectory()
			w.look(quiet)
			poll.Reset(w.pause())
		case <-quiet.C:
			w.look(quiet)
			if wait := w.unfinished(time.Now()); wait > 0 {
				quiet.Reset(wait)
				continue
			}
			w.since = time.Time{}
			read()
		}
	}
}

// stamp distinguishes two contents of a path without reading them.
type stamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime syscall.Timespec
}

type watcher struct {
	path    string
	fs      *fsnotify.Watcher
	watched stamp // the directory that fs watches

	seen    stamp     // when last looked at
	changed time.Time // when seen last changed
	since   time.Time // when the first change came that has not been read yet; zero without one
}

// reader reads cluster.yaml, and says what is new.
type reader struct {
	path    string
	onState func(mesh.State)
	onErr   func(error)
	have    bool
	last    mesh.State // valid if have
	problem string     // last one reported, "" when the file is good
}

// addDirectory watches the file's directory, again if that was replaced, because inotify on
// the file itself would miss renames over it. It ignores errors: if the directory is
// missing, so is the file, which is reported.
func (w *watcher) addDirectory() {
	dir := filepath.Dir(w.path)
	at := stampOf(dir)
	at = stamp{dev: at.dev, ino: at.ino}
	if w.fs == nil || at == w.watched {
		return
	}
	if w.watched = at; w.fs.Add(dir) != nil {
		w.watched = stamp{}
	}
}

// pause is how long until the next look, if the kernel reports nothing.
func (w *watcher) pause() time.Duration {
	target, err := filepath.EvalSymlinks(w.path)
	if err != nil || target != filepath.Clean(w.path) || w.watched == (stamp{}) || !reports(w.path) {
		return pollInterval
	}
	return restInterval
}

// reports says whether inotify reports all changes of a file: those of a network file system are made elsewhere.
func reports(path string) bool {
	var fs unix.Statfs_t
	if unix.Statfs(path, &fs) != nil {
		return false
	}
	//nolint:unconvert // Type is not 64 bits wide on every machine
	switch int64(fs.Type) {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC:
		return true
	}
	return false
}

// look records a change of the file, which is read once it has stopped changing.
func (w *watcher) look(quiet *time.Timer) {
	now := stampOf(w.path)
	if now == w.seen {
		return
	}
	w.seen, w.changed = now, time.Now()
	if w.since.IsZero() {
		w.since = w.changed
		quiet.Reset(debounce)
	}
}

// unfinished returns how long to wait for a file that is still being written. A file that
// never stops changing is read from time to time anyway.
func (w *watcher) unfinished(now time.Time) time.Duration {
	if w.since.IsZero() || now.Sub(w.since) > patience {
		return 0
	}
	return debounce - now.Sub(w.changed)
}

// stampOf follows symlinks; a missing file has the zero stamp.
func stampOf(path string) stamp {
	fi, err := os.Stat(path)
	if err != nil {
		return stamp{}
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{size: fi.Size()}
	}
	//nolint:unconvert // Dev is not 64 bits wide on every machine
	return stamp{dev: uint64(st.Dev), ino: st.Ino, size: st.Size, mtime: st.Mtim, ctime: st.Ctim}
}

func (w *reader) read() {
	s, err := Load(w.path)
	if err != nil {
		if text := err.Error(); text != w.problem {
			w.problem = text
			w.onErr(err)
		}
		return
	}
	fixed := w.problem != ""
	w.problem = ""
	if w.have && !fixed && reflect.DeepEqual(s, w.last) {
		return
	}
	mesh.Share(w.last.Nodes, s.Nodes)
	w.last, w.have = s, true
	w.onState(s)
}
