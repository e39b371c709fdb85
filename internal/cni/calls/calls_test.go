package calls

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// What many processes note at the same time is taken once, whole.
func TestNoteAndTake(t *testing.T) {
	dir := t.TempDir()
	if got, err := Take(dir); err != nil || got != nil {
		t.Errorf("nothing yet: %v, %v", got, err)
	}
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if err := Note(dir, Call{"ADD", OK, 1500 * time.Microsecond}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := Note(dir, Call{"DEL", Full, time.Second}); err != nil {
		t.Error(err)
	}
	got, err := Take(dir)
	if err != nil || len(got) != 101 || got[0] != (Call{"ADD", OK, 1500 * time.Microsecond}) || got[100] != (Call{"DEL", Full, time.Second}) {
		t.Errorf("%d calls, %v", len(got), err)
	}
	if got, err := Take(dir); err != nil || got != nil {
		t.Errorf("taken twice: %v, %v", got, err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// Without an agent the file stays small; without its directory there is none; through a link nothing is written.
func TestBounds(t *testing.T) {
	dir := t.TempDir()
	for range 2 * maxFile / len("ADD ok 1\n") {
		if err := Note(dir, Call{"ADD", OK, time.Microsecond}); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, File)); err != nil || info.Size() > maxFile+64 {
		t.Errorf("%v, %v", info, err)
	}
	if Note("relative", Call{"ADD", OK, 0}) == nil {
		t.Error("a relative path is accepted")
	}
	if Note(filepath.Join(dir, "none"), Call{"ADD", OK, 0}) == nil {
		t.Error("a directory that is not there is written to")
	}
	other, target := t.TempDir(), filepath.Join(dir, "target")
	if err := os.Symlink(target, filepath.Join(other, File)); err != nil {
		t.Fatal(err)
	}
	if Note(other, Call{"ADD", OK, 0}) == nil {
		t.Error("a link is followed")
	}
}

func TestParse(t *testing.T) {
	text := "ADD ok 12\nADD ok\nRUN ok 1\nDEL gone 1\nDEL error -1\nDEL error 99999999999999999999\nGC error 7\nCHECK ok 1" + strings.Repeat("\x00", 99)
	want := []Call{{"ADD", OK, 12 * time.Microsecond}, {"GC", Failed, 7 * time.Microsecond}}
	if got := parse([]byte(text)); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}
