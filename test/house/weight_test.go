package house

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// maxFile is how large a file of the tree may be, in bytes.
const maxFile = 200 << 10

// bpf are the filters that the plugin loads, compiled: few users have clang. A test of internal/cni/antispoof compares them with their source.
const bpf = "internal/cni/antispoof/filter_bpfe?.o"

// TestWeight: a clone has no programs that were built, and no large files.
func TestWeight(t *testing.T) {
	out, err := exec.Command("git", "-C", "../..", "ls-files", "-z").Output()
	if err != nil {
		t.Skip("NOT TESTED: this is no clone: ", err)
	}
	files := strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 })
	if len(files) < 1000 {
		t.Fatalf("git lists %d files", len(files))
	}
	for _, file := range files {
		if broken := heavy(filepath.Join("../..", file)); broken != "" && !matches(bpf, file) {
			t.Errorf("%s: %s", file, broken)
		}
	}
}

// heavy says why a file does not belong into the tree, or "". One that was removed and not committed weighs nothing.
func heavy(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	var first [4]byte
	if info, err := f.Stat(); err == nil && info.Size() > maxFile {
		return "over 200 KB: make it where it is needed, or fetch it there"
	}
	if _, err := io.ReadFull(f, first[:]); err == nil && bytes.Equal(first[:], []byte("\x7fELF")) {
		return "a program: build it where it is needed"
	}
	return ""
}

func TestWeightIsHeld(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		content string
		refused bool
	}{"text": {"hello", false}, "empty": {"", false}, "program": {"\x7fELF\x02", true}, "large": {strings.Repeat("x", maxFile+1), true}} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(c.content), 0o644); err != nil {
			t.Fatal(err)
		}
		if broken := heavy(file); (broken != "") != c.refused {
			t.Errorf("%s: %q", name, broken)
		}
	}
}
