// Package house holds the rules of the house that the compiler and the linter do not hold.
//
//	house_test.go   the rules
//	fuzz_test.go    fuzz targets have corpora
//	source_test.go  what the rules look at: directories, files and types
//
// CONTRIBUTING.md tells the rules. A type that is larger than they allow says why in its
// own comment, in a line that starts with "Fields:" or "Methods:".
package house

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

const (
	maxPackage = 3500 // lines of a package, tests aside
	maxFile    = 450  // lines of any file
	maxFields  = 12   // of a struct
	maxMethods = 20   // of a type
)

// TestRules holds every directory to the rules.
func TestRules(t *testing.T) {
	for _, f := range directories(t) {
		for _, rule := range []func(*directory) []string{size, fileSizes, typeSizes, purpose, fileList} {
			for _, broken := range rule(f) {
				t.Errorf("%s: %s", f.path, broken)
			}
		}
	}
}

// size holds a package to what one can know by heart.
func size(f *directory) (broken []string) {
	n := 0
	for _, x := range f.files {
		if !x.test {
			n += x.lines
		}
	}
	if n > maxPackage {
		broken = append(broken,
			fmt.Sprintf("%d lines without tests, at most %d: make a room of a part of it", n, maxPackage))
	}
	return broken
}

// fileSizes holds a file to what one reads in one sitting.
func fileSizes(f *directory) (broken []string) {
	for _, x := range f.files {
		if x.lines > maxFile {
			broken = append(broken,
				fmt.Sprintf("%s has %d lines, at most %d: split it by what it is about", x.name, x.lines, maxFile))
		}
	}
	return broken
}

// typeSizes holds a type to one owner of one state, unless its comment gives a reason.
func typeSizes(f *directory) (broken []string) {
	for _, name := range slices.Sorted(maps.Keys(f.types)) {
		x := f.types[name]
		if x.fields > maxFields && !x.says("Fields:") {
			broken = append(broken, fmt.Sprintf(`%s has %d fields, at most %d: split it by what it knows,`+
				` or give the reason in its comment, in a line "Fields: …"`, name, x.fields, maxFields))
		}
		if x.methods > maxMethods && !x.says("Methods:") {
			broken = append(broken, fmt.Sprintf(`%s has %d methods, at most %d: split it by what it does,`+
				` or give the reason in its comment, in a line "Methods: …"`, name, x.methods, maxMethods))
		}
	}
	return broken
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
	const fields13 = "struct{ a, b, c, d, e, f, g, h, i, j, k, l, m int }\n"
	big := parse(t, "big", map[string]string{
		"doc.go": "// Package big is big.\n//\n//\ta.go     one\n//\tgone.go  another\n//\troom/    below\npackage big\n",
		"a.go": "package big\n\n// T is large.\ntype T " + fields13 +
			strings.Repeat("func (t *T) m() {}\n", 21),
		"b.go": "package big\n\n// U is large.\n// Fields: of a wire format.\ntype U " + fields13 +
			strings.Repeat("\n", maxFile),
		"c_test.go": "package big\n\ntype v " + fields13 + strings.Repeat("\n", maxPackage),
	})
	big.rooms = []string{"hall/"}
	for _, c := range []struct {
		rule func(*directory) []string
		want []string
	}{
		{size, nil},
		{fileSizes, []string{"b.go has", "c_test.go has"}},
		{typeSizes, []string{"T has 13 fields", "T has 21 methods"}},
		{fileList, []string{"names gone.go", "names room/", "not hall/", "not b.go"}},
		{purpose, nil},
	} {
		got := c.rule(big)
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
	long := parse(t, "long", map[string]string{"a.go": "package long\n" + strings.Repeat("\n", maxPackage)})
	if len(size(long)) != 1 {
		t.Errorf("a package of %d lines is not refused", maxPackage+1)
	}
	if len(purpose(long)) != 1 {
		t.Error("a package without a comment is not refused")
	}
}
