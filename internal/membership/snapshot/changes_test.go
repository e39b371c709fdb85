package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/membership/mesh"
)

// next is a membership after s: nodes come, go and change.
func next(r *rand.Rand, s mesh.State) mesh.State {
	s.Nodes = slices.Clone(s.Nodes)
	for range 1 + r.IntN(3) {
		i := r.IntN(30)
		name := fmt.Sprintf("n%02d", i)
		s.Nodes = slices.DeleteFunc(s.Nodes, func(n mesh.Node) bool { return n.Name == name })
		if r.IntN(3) > 0 {
			s.Nodes = append(s.Nodes, mesh.Node{Name: name, PeerID: mesh.PeerID(fmt.Sprint(name, r.IntN(5))),
				PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(100 + i), 0}), 24)}})
		}
	}
	slices.SortFunc(s.Nodes, func(a, b mesh.Node) int { return strings.Compare(a.Name, b.Name) })
	return s
}

func contents(t *testing.T, dir string) (whole, changes []byte) {
	t.Helper()
	whole, err := os.ReadFile(filepath.Join(dir, File))
	if err != nil {
		t.Fatal(err)
	}
	changes, err = os.ReadFile(filepath.Join(dir, ChangesFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return whole, changes
}

// left is a directory with files as a power cut left them; nil: not there.
func left(t *testing.T, whole, changes []byte) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, data := range map[string][]byte{File: whole, ChangesFile: changes} {
		if data == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestPowerCutWhileAppending: whatever a power cut leaves of the last append (a part, zeros, another file's bytes), what was
// saved before is there, or what was being saved; and the next program continues from it.
func TestPowerCutWhileAppending(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	k, s := Keeper{Dir: t.TempDir()}, state()
	if err := k.Save(s); err != nil {
		t.Fatal(err)
	}
	cuts := 0
	for range 2 {
		_, before := contents(t, k.Dir)
		was := s
		s = next(r, s)
		if err := k.Save(s); err != nil {
			t.Fatal(err)
		}
		whole, after := contents(t, k.Dir)
		if got, err := Load(k.Dir); err != nil || !reflect.DeepEqual(got, s) {
			t.Fatalf("saved %+v, %v; want %+v", got, err, s)
		}
		if !bytes.HasPrefix(after, before) {
			t.Fatal("the changes before were written again")
		}
		line := after[len(before):]
		for n := 0; n <= len(line); n = min(n+1+r.IntN(6), len(line)+n/len(line)) {
			for _, rest := range [][]byte{line[:n], append(bytes.Clone(line[:n]), make([]byte, len(line)-n)...), append(bytes.Clone(line[:n]), after[:len(line)-n]...)} {
				cuts++
				dir := left(t, whole, slices.Concat(before, rest))
				got, err := Load(dir)
				if err != nil || !reflect.DeepEqual(got, was) && !reflect.DeepEqual(got, s) || n == len(line) && !reflect.DeepEqual(got, s) {
					t.Fatalf("cut after %d of %d bytes: %+v, %v; want %+v or %+v", n, len(line), got, err, was, s)
				}
				if n%16 != 0 {
					continue
				}
				again := Keeper{Dir: dir}
				for range 2 { // the first is written whole, the second appended
					got = next(r, got)
					if err := again.Save(got); err != nil {
						t.Fatal(err)
					}
					if have, err := Load(dir); err != nil || !reflect.DeepEqual(have, got) {
						t.Fatalf("after the cut: %+v, %v; want %+v", have, err, got)
					}
				}
			}
		}
	}
	t.Logf("%d power cuts", cuts)
}

// TestChangesOfAnotherWhole are not read: a power cut came between the new whole and their removal, or another version
// wrote the whole.
func TestChangesOfAnotherWhole(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 0))
	k, first := Keeper{Dir: t.TempDir()}, state()
	second := next(r, first)
	for _, s := range []mesh.State{first, second} {
		if err := k.Save(s); err != nil {
			t.Fatal(err)
		}
	}
	_, changes := contents(t, k.Dir)
	third := next(r, second)
	if err := Save(k.Dir, third); err != nil {
		t.Fatal(err)
	}
	whole, none := contents(t, k.Dir)
	if none != nil {
		t.Error("the changes are still there beside a new whole")
	}
	dir := left(t, whole, changes)
	if got, err := Load(dir); err != nil || !reflect.DeepEqual(got, third) {
		t.Errorf("%+v, %v; want %+v", got, err, third)
	}
	if err := k.Save(next(r, second)); err != nil { // a Keeper whose file was taken away
		if err = k.Save(second); err != nil {
			t.Fatal(err)
		}
	}
}

// TestChangesAreFolded: they do not grow without end, and Close leaves none. A membership that stays is not written.
func TestChangesAreFolded(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 0))
	k, s := Keeper{Dir: t.TempDir()}, state()
	folded := 0
	for i := range 1200 {
		s = next(r, s)
		if err := k.Save(s); err != nil {
			t.Fatal(err)
		}
		if k.changes == 0 && i > 0 {
			folded++
		}
	}
	if folded == 0 || folded > 20 {
		t.Errorf("the whole was written %d times for 1200 changes", folded)
	}
	s = next(r, next(r, s))
	if err := errors.Join(k.Save(s), k.Close()); err != nil {
		t.Fatal(err)
	}
	whole, changes := contents(t, k.Dir)
	if got, err := Load(k.Dir); changes != nil || err != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("after Close: %d bytes of changes, %+v, %v", len(changes), got, err)
	}
	if got, _, err := decode(whole); err != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("as older versions read it: %+v, %v", got, err)
	}
	slices.Reverse(s.Nodes)
	before, _ := os.Stat(filepath.Join(k.Dir, File))
	err := k.Save(s)
	after, _ := os.Stat(filepath.Join(k.Dir, File))
	if _, changes := contents(t, k.Dir); err != nil || changes != nil || !os.SameFile(before, after) {
		t.Errorf("another order was written, %v", err)
	}
}

// TestWholeForOlderVersions: other settings are known to versions that do not know changes, and so is, after an hour, who
// has left.
func TestWholeForOlderVersions(t *testing.T) {
	k, s := Keeper{Dir: t.TempDir()}, state()
	for i := range 3 {
		s.Nodes = append(slices.Clone(s.Nodes), mesh.Node{Name: fmt.Sprint("n", i), PeerID: mesh.PeerID(fmt.Sprint("N", i)),
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(100 + i), 0}), 24)}})
	}
	save := func(what string, whole bool) {
		t.Helper()
		if err := k.Save(s); err != nil {
			t.Fatal(err)
		}
		if _, changes := contents(t, k.Dir); (changes == nil) != whole {
			t.Errorf("%s: %d bytes of changes", what, len(changes))
		}
		if got, err := Load(k.Dir); err != nil || !reflect.DeepEqual(got, s) {
			t.Errorf("%s: %+v, %v; want %+v", what, got, err, s)
		}
	}
	save("first", true)
	s.Nodes = s.Nodes[:3]
	save("one left", false)
	s.Banned = []string{"n2"}
	save("it is banned", true)
	k.written = k.written.Add(-2 * wholeAfter)
	s.Nodes = slices.Clone(s.Nodes)
	s.Nodes[1].Site = "berlin"
	save("one changed", false)
	s.Nodes = s.Nodes[:2]
	save("one left after hours", true)
}

func TestTooLargeIsNotWritten(t *testing.T) {
	k, s := Keeper{Dir: t.TempDir()}, state()
	if err := k.Save(s); err != nil {
		t.Fatal(err)
	}
	large := s
	large.Banned = []string{strings.Repeat("b", maxSize)}
	if err := k.Save(large); err == nil {
		t.Error("no error for what cannot be read")
	}
	if got, err := Load(k.Dir); err != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("%d nodes, %v", len(got.Nodes), err)
	}
}

// TestFailedAppendIsMadeGood: after an append that failed the whole is written, since half of a change may be there; by
// Close, if that fails, too.
func TestFailedAppendIsMadeGood(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 0))
	k, s := Keeper{Dir: t.TempDir()}, state()
	for range 2 {
		s = next(r, s)
		if err := k.Save(s); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(k.Dir, ChangesFile)
	if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	s = next(r, s)
	check := func(what string, err error) {
		t.Helper()
		got, failed := Load(k.Dir)
		if err = errors.Join(err, failed); err != nil || !reflect.DeepEqual(got, s) {
			t.Fatalf("%s: %+v, %v; want %+v", what, got, err, s)
		}
	}
	check("another size", k.Save(s))
	for was := s; reflect.DeepEqual(was, s); {
		s = next(r, s)
	}
	check("appended again", k.Save(s))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for was := s; reflect.DeepEqual(was, s); {
		s = next(r, s)
	}
	check("taken away", k.Save(s))

	dir := k.Dir
	s = next(r, s)
	k.Dir = filepath.Join(dir, "none")
	if err := k.Save(s); err == nil {
		t.Fatal("saved in a directory that is not there")
	}
	if k.Close() == nil {
		t.Fatal("closed without it")
	}
	k.Dir = dir
	check("closed", k.Close())
}

// FuzzChanges: whatever is in the file of changes, Load returns a valid membership or says that the snapshot is torn.
func FuzzChanges(f *testing.F) {
	var w, c bytes.Buffer
	s := whole{state()}
	if err := s.write(&w); err != nil {
		f.Fatal(err)
	}
	sum, _, err := s.digest()
	if err != nil {
		f.Fatal(err)
	}
	r := rand.New(rand.NewPCG(5, 0))
	for at := s.state; c.Len() < 2000; {
		now := next(r, at)
		line, next, err := change{Nodes: mesh.Diff(at.Nodes, now.Nodes)}.encode(sum)
		if err != nil {
			f.Fatal(err)
		}
		c.Write(line)
		sum, at = next, now
		f.Add(bytes.Clone(c.Bytes()))
	}
	f.Fuzz(func(t *testing.T, changes []byte) {
		got, err := Load(left(t, w.Bytes(), changes))
		if err != nil && !errors.Is(err, ErrTorn) {
			t.Fatal(err)
		}
		if err == nil && got.Validate() != nil {
			t.Fatal("it is not valid")
		}
	})
}

// TestClockJumps: whatever the clock says of when the whole was written, each membership that was saved is there.
func TestClockJumps(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 0))
	k, s := Keeper{Dir: t.TempDir()}, state()
	for _, jump := range []time.Duration{0, 3 * time.Hour, -3 * time.Hour, 40 * 365 * 24 * time.Hour, -80 * 365 * 24 * time.Hour} {
		for range 5 {
			s = next(r, s)
			if err := k.Save(s); err != nil {
				t.Fatal(err)
			}
			k.written = k.written.Add(jump)
			if got, err := Load(k.Dir); err != nil || !reflect.DeepEqual(got, s) {
				t.Fatalf("after a jump of %v: %+v, %v; want %+v", jump, got, err, s)
			}
		}
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := Load(k.Dir); err != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("after the end: %+v, %v; want %+v", got, err, s)
	}
}

// TestStatementsAreNotSaved: one that comes costs the disk nothing, and a start from the snapshot knows by whose key they are.
func TestStatementsAreNotSaved(t *testing.T) {
	k, s := Keeper{Dir: t.TempDir()}, state()
	s.Signer = "S"
	changed := s
	changed.Nodes = append(slices.Clone(s.Nodes), mesh.Node{Name: "edge-2", PeerID: "F", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}})
	signed := changed
	signed.Signed, signed.News = []string{"a"}, []string{"b"}
	for _, x := range []mesh.State{s, changed, signed} {
		if err := k.Save(x); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := Load(k.Dir); k.changes == 0 || err != nil || !reflect.DeepEqual(got, changed) {
		t.Errorf("%+v, %v, %d bytes of changes", got, err, k.changes)
	}
}
