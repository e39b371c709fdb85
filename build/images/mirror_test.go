package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestAptMirror(t *testing.T) {
	for _, c := range []struct{ name, file, text, want string }{
		{"deb822", "sources.list.d/debian.sources", "Types: deb\n# http://old/debian\nURIs: http://mirror.test/debian\nSuites: bookworm\n", "http://mirror.test"},
		{"one line", "sources.list", "deb http://mirror.test/debian bookworm main\n", "http://mirror.test"},
		{"options", "sources.list", "deb [signed-by=/k arch=amd64] https://mirror.test/pub/debian/ bookworm main\n", "https://mirror.test/pub"},
		{"security alone is none", "sources.list", "deb http://mirror.test/debian-security bookworm main\n", ""},
		{"another distribution", "sources.list", "deb http://mirror.test/ubuntu noble main\n", ""},
		{"commented out", "sources.list", "# deb http://mirror.test/debian bookworm main\n", ""},
	} {
		root := t.TempDir()
		if err := os.MkdirAll(filepath.Join(root, "sources.list.d"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, c.file), []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		have, err := aptMirror(root)
		if have != c.want || (c.want == "") != errors.Is(err, errNoMirror) {
			t.Errorf("%s: %q, %v; want %q", c.name, have, err, c.want)
		}
	}
}

// A build never has other packages than the lock says, not even newer ones.
func TestPackagesDifferFromTheLock(t *testing.T) {
	want := map[string]locked{"a": {"amd64", "a", "1", "x"}, "b": {"amd64", "b", "2", "y"}}
	same := []locked{want["b"], want["a"]}
	if err := differ(want, same); err != nil {
		t.Errorf("the very packages of the lock: %v", err)
	}
	for name, got := range map[string][]locked{
		"a newer version":        {want["a"], {"amd64", "b", "3", "y"}},
		"the same, other digest": {want["a"], {"amd64", "b", "2", "z"}},
		"one missing":            {want["a"]},
	} {
		if err := differ(want, got); !errors.Is(err, errDiffers) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
