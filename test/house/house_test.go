// Package house holds the rules of the house that the compiler and the linter do not hold.
//
//	house_test.go   the rules
//	fuzz_test.go    fuzz targets have corpora
//	hosts_test.go   every libp2p host is guarded
//	modules_test.go every check covers every module of go.work
//	tiers_test.go   every test has one tier
//	weight_test.go  no programs and no large files are in the tree
//	sleep_test.go   tests wait for conditions
//	source_test.go  what the rules look at: directories, files and types
//
// CONTRIBUTING.md lists the rules, and the reviewer's question that takes the place of caps on sizes.
package house

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
)

// TestRules holds every directory to the rules.
func TestRules(t *testing.T) {
	for _, f := range directories(t) {
		for _, rule := range []func(*directory) []string{purpose, fileList, sleeps} {
			for _, broken := range rule(f) {
				t.Errorf("%s: %s", f.path, broken)
			}
		}
	}
}

// purpose holds every package to a comment that says what it is for.
func purpose(f *directory) (broken []string) {
	if !f.purpose {
		broken = append(broken, `no package comment that says its purpose: "Package NAME …" or "Command NAME …"`)
	}
	return broken
}

// fileList holds the package comment to the directory: every file and directory it names is
// there; where it lists files, every file is in it, and where it lists directories, every
// package below.
func fileList(f *directory) (broken []string) {
	var there []string
	for _, x := range f.files {
		there = append(there, x.name)
	}
	for _, name := range f.named {
		list := there
		if strings.HasSuffix(name, "/") {
			list = f.below
		}
		if !slices.ContainsFunc(list, func(s string) bool { return matches(name, s) }) {
			broken = append(broken, fmt.Sprintf("the package comment names %s, which is not there", name))
		}
	}
	for _, room := range f.rooms {
		if f.hasRooms && !slices.Contains(f.named, room) {
			broken = append(broken, fmt.Sprintf("the package comment lists directories, but not %s", room))
		}
	}
	for _, x := range f.files {
		if !f.hasList || x.test || x.name == "doc.go" ||
			slices.ContainsFunc(f.named, func(name string) bool { return matches(name, x.name) }) {
			continue
		}
		broken = append(broken, fmt.Sprintf("the package comment lists files, but not %s", x.name))
	}
	return broken
}

func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

// TestRulesAreHeld shows each rule what it must refuse.
func TestRulesAreHeld(t *testing.T) {
	listed := parse(t, "listed", map[string]string{
		"doc.go": "// Package listed lists.\n//\n//\ta.go     one\n//\tgone.go  another\n//\troom/    below\npackage listed\n",
		"a.go":   "package listed\n",
		"b.go":   "package listed\n",
	})
	listed.rooms = []string{"hall/"}
	for _, c := range []struct {
		rule func(*directory) []string
		want []string
	}{
		{fileList, []string{"names gone.go", "names room/", "not hall/", "not b.go"}},
		{purpose, nil},
	} {
		got := c.rule(listed)
		if len(got) != len(c.want) {
			t.Errorf("broken rules %q, want %q", got, c.want)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], c.want[i]) {
				t.Errorf("broken rule %q, want %q", got[i], c.want[i])
			}
		}
	}
	tests := parse(t, "sleepy", map[string]string{"a_test.go": "package sleepy\n\nfunc bubble(f func()) { synctest.Test(nil, f) }\n\n" +
		"func TestIn() { bubble(func() { time.Sleep(1) }); time.Sleep(2) // sleep: why\n\ttime.Sleep(3) // why\n}\n"})
	if got := sleeps(tests); len(got) != 1 || !strings.HasPrefix(got[0], "a_test.go:6: ") {
		t.Errorf("sleeps %q", got)
	}
	if len(purpose(parse(t, "silent", map[string]string{"a.go": "package silent\n"}))) != 1 {
		t.Error("a package without a comment is not refused")
	}
}
