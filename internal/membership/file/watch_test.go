package file

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"edgemesh/internal/membership/mesh"
	"edgemesh/test/fair"
)

// deadline is far beyond the promise of 2 s: a loaded machine must not fail us.
const deadline = 20 * time.Second

type watched struct {
	t      *testing.T
	states chan mesh.State
	errs   chan error
}

func watch(t *testing.T, path string) watched {
	t.Helper()
	w := watched{t, make(chan mesh.State, 100), make(chan error, 100)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Watch(ctx, path, func(s mesh.State) { w.states <- s }, func(err error) { w.errs <- err })
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		goleak.VerifyNone(t, goleak.IgnoreCurrent())
	})
	return w
}

// nodes waits for a membership of n nodes, with no error before it.
func (w watched) nodes(n int) {
	w.t.Helper()
	ctx, cancel := fair.WithTimeout(w.t.Context(), deadline)
	defer cancel()
	select {
	case s := <-w.states:
		if len(s.Nodes) != n {
			w.t.Fatalf("%d nodes, want %d", len(s.Nodes), n)
		}
	case err := <-w.errs:
		w.t.Fatalf("error: %v", err)
	case <-ctx.Done():
		w.t.Fatal("no change seen")
	}
}

// problem waits for an error that says want, with no membership before it.
func (w watched) problem(want string) {
	w.t.Helper()
	ctx, cancel := fair.WithTimeout(w.t.Context(), deadline)
	defer cancel()
	select {
	case s := <-w.states:
		w.t.Fatalf("membership of %d nodes, want an error", len(s.Nodes))
	case err := <-w.errs:
		if !strings.Contains(err.Error(), want) {
			w.t.Fatalf("error %v, want %q", err, want)
		}
	case <-ctx.Done():
		w.t.Fatal("no error seen")
	}
}

// withNodes is the test document cut after its first n nodes (n is 1 or 2).
func withNodes(n int) string {
	if n == 1 {
		return clusterYAML()[:strings.Index(clusterYAML(), "  - {name: edge-2")]
	}
	return clusterYAML()
}

func TestWatchWritesAndRenames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	write(t, path, withNodes(2))
	w := watch(t, path)
	w.nodes(2)
	write(t, path, withNodes(1))
	w.nodes(1)
	write(t, path+".new", withNodes(2))
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	w.nodes(2)
}

// A ConfigMap volume: the file is a link through ..data, which is swapped.
func TestWatchSymlinkSwap(t *testing.T) {
	dir := t.TempDir()
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for n, sub := range []string{1: "..one", 2: "..two"} {
		if sub == "" {
			continue
		}
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, sub, "cluster.yaml"), withNodes(n))
	}
	link("..one", "..data")
	link("..data/cluster.yaml", "cluster.yaml")
	w := watch(t, filepath.Join(dir, "cluster.yaml"))
	w.nodes(1)
	link("..two", "..data_tmp")
	if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	w.nodes(2)
}

// No event tells of a change behind a link to another directory, or of a directory
// that was replaced: the poll does.
func TestWatchByPoll(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "etc")
	for _, d := range []string{dir, filepath.Join(top, "far"), filepath.Join(top, "new")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(top, "far", "f"), withNodes(2))
	if err := os.Symlink("../far/f", filepath.Join(dir, "cluster.yaml")); err != nil {
		t.Fatal(err)
	}
	w := watch(t, filepath.Join(dir, "cluster.yaml"))
	w.nodes(2)
	write(t, filepath.Join(top, "far", "f"), withNodes(1))
	w.nodes(1)
	write(t, filepath.Join(top, "new", "cluster.yaml"), withNodes(2))
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(top, "new"), dir); err != nil {
		t.Fatal(err)
	}
	w.nodes(2)
	write(t, filepath.Join(dir, "cluster.yaml"), withNodes(1))
	w.nodes(1)
}

func TestWatchKeepsTheLastGoodOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	w := watch(t, path)
	w.problem("no such file")
	write(t, path, withNodes(2))
	w.nodes(2)
	write(t, path, withNodes(2)[:200])
	w.problem(path + ": ")
	write(t, path, "podCIDRs: []\n")
	w.problem("podCIDRs: empty")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	w.problem("no such file")
	// Fixed: that is news, even with the membership that is in force.
	write(t, path, withNodes(2))
	w.nodes(2)
	// The same membership again is no change; the next one is.
	write(t, path, "# a comment\n"+withNodes(2))
	write(t, path, withNodes(1))
	w.nodes(1)
}

// A file that is being written line by line must not pass for a membership
// with fewer nodes, nor keep us waiting forever.
func TestWatchWaitsForAWriter(t *testing.T) {
	start := time.Now()
	ms := func(n int) time.Time { return start.Add(time.Duration(n) * time.Millisecond) }
	for _, c := range []struct {
		name                string
		since, changed, now time.Time
		wait                time.Duration
	}{
		{"first look, nothing changed", time.Time{}, time.Time{}, start, 0},
		{"just changed", start, start, start, debounce},
		{"still being written", start, ms(250), ms(300), debounce - 50*time.Millisecond},
		{"at rest", start, ms(100), ms(100).Add(debounce), 0},
		{"never at rest", start, ms(990), ms(1000), 0},
	} {
		w := watcher{since: c.since, changed: c.changed}
		if got := max(0, w.unfinished(c.now)); got != c.wait {
			t.Errorf("%s: wait %v, want %v", c.name, got, c.wait)
		}
	}
}
