package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestAptMirror(t *testing.T) {
	for _, c := range []struct{ name, file, text, want string }{
		{"deb822", "sources.list.d/debian.sources", "Types: deb\n# http://old/debian\nURIs: http://mirror.test/debian\nSuites: trixie\n", "http://mirror.test"},
		{"one line", "sources.list", "deb http://mirror.test/debian trixie main\n", "http://mirror.test"},
		{"options", "sources.list", "deb [signed-by=/k arch=amd64] https://mirror.test/pub/debian/ trixie main\n", "https://mirror.test/pub"},
		{"security alone is none", "sources.list", "deb http://mirror.test/debian-security trixie main\n", ""},
		{"another distribution", "sources.list", "deb http://mirror.test/ubuntu noble main\n", ""},
		{"commented out", "sources.list", "# deb http://mirror.test/debian trixie main\n", ""},
	} {
		root := t.TempDir()
		if err := os.MkdirAll(filepath.Join(root, "sources.list.d"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, c.file), []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if have := aptMirror(root); have != c.want {
			t.Errorf("%s: %q, want %q", c.name, have, c.want)
		}
	}
}

// An image has the packages that the lock names, no others, not even newer ones.
func TestPackagesDifferFromTheLock(t *testing.T) {
	a, b := locked{"amd64", "a", "1", "x"}, locked{"amd64", "b", "2", "y"}
	lock := []locked{a, b}
	if err := differ(lock, []locked{b, a}); err != nil {
		t.Errorf("the very packages of the lock: %v", err)
	}
	for name, got := range map[string][]locked{
		"a newer version":        {a, {"amd64", "b", "3", "y"}},
		"the same, other digest": {a, {"amd64", "b", "2", "z"}},
		"one missing":            {a},
		"one more":               {a, b, {"amd64", "c", "1", "x"}},
	} {
		if err := differ(lock, got); !errors.Is(err, errDiffers) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Files belong to the package that contains them; what an image takes from no package has none.
func TestOwners(t *testing.T) {
	a, b := locked{"amd64", "a", "1", "x"}, locked{"amd64", "b", "2", "y"}
	d := debian{tree{}, map[string]locked{"usr/lib/a.so": a, "usr/lib/a.so.1": a, "usr/sbin/b": b, "usr/sbin/c": {"amd64", "c", "1", "z"}}}
	got := d.packages(tree{"usr/sbin/b": {}, "usr/lib/a.so": {}, "usr/lib/a.so.1": {}, "etc/made-here": {}})
	if !slices.Equal(got, []locked{a, b}) {
		t.Errorf("%v", got)
	}
}
