package file

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"edgemesh/agent/mesh"
)

const (
	// pollInterval bounds how late a change is seen that the kernel does not
	// report: a replaced folder, a symlink's far end, a network file system.
	pollInterval = time.Second
	// settle is how long a file must stay the same before it is read, so that
	// one which is being written is not taken for a shorter membership.
	settle = 200 * time.Millisecond
)

// Watch reads path now and after each change, and calls onState with the
// membership when it differs from the last one, within 2 s of the change. A
// file that is missing or broken goes to onErr, once per cause, and the last
// good membership stays in force; once the file is good again, onState is called
// even if nothing else changed. Changes by writing, by rename and by symlink
// swap (as ConfigMap volumes do) are all seen. Watch calls from one goroutine
// and returns when ctx ends.
func Watch(ctx context.Context, path string, onState func(mesh.State), onErr func(error)) {
	w := watcher{path: path, onState: onState, onErr: onErr}
	// Without inotify (its instances are few and shared) the poll still holds
	// the promise.
	var events chan fsnotify.Event
	var problems chan error
	if fs, err := fsnotify.NewWatcher(); err == nil {
		defer fs.Close()
		w.fs, events, problems = fs, fs.Events, fs.Errors
	}
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	settled := time.NewTimer(0)
	defer settled.Stop()
	w.addFolder()
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			w.look(settled)
		case <-problems: // an overflow at worst; the poll covers it
		case <-poll.C:
			w.addFolder()
			w.look(settled)
		case <-settled.C:
			w.look(settled)
			if wait := w.unsettled(time.Now()); wait > 0 {
				settled.Reset(wait)
				continue
			}
			w.read()
		}
	}
}

// stamp tells two contents of a path apart without reading them.
type stamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime syscall.Timespec
}

type watcher struct {
	path    string
	onState func(mesh.State)
	onErr   func(error)
	fs      *fsnotify.Watcher

	seen    stamp     // when last looked at
	changed time.Time // when seen last changed
	since   time.Time // when the first change came that is not read yet, else zero
	have    bool
	last    mesh.State // valid if have
	problem string     // last one reported, "" when the file is good
}

// addFolder watches the folder, again if it was replaced; inotify of the file
// itself would miss renames over it. An error means that the folder is missing,
// and so is the file, which is reported.
func (w *watcher) addFolder() {
	if w.fs != nil {
		_ = w.fs.Add(filepath.Dir(w.path))
	}
}

// look notes a change of the file and has it read once it has settled.
func (w *watcher) look(settled *time.Timer) {
	now := stampOf(w.path)
	if now == w.seen {
		return
	}
	w.seen, w.changed = now, time.Now()
	if w.since.IsZero() {
		w.since = w.changed
		settled.Reset(settle)
	}
}

// unsettled returns how long to wait for a file that is still being written. One
// that never rests is read all the same, every now and then.
func (w *watcher) unsettled(now time.Time) time.Duration {
	if w.since.IsZero() || now.Sub(w.since) > pollInterval/2 {
		return 0
	}
	return settle - now.Sub(w.changed)
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

func (w *watcher) read() {
	w.since = time.Time{}
	s, err := Load(w.path)
	if err != nil {
		if text := err.Error(); text != w.problem {
			w.problem = text
			w.onErr(err)
		}
		return
	}
	mended := w.problem != ""
	w.problem = ""
	if w.have && !mended && reflect.DeepEqual(s, w.last) {
		return
	}
	w.last, w.have = s, true
	w.onState(s)
}
