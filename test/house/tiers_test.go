package house

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"edgemesh/test/tier"
	"edgemesh/test/tiers"
)

// TestTiers: each test is in one tier, which its source declares with package tier alone. What make test compiles is one module and that
// of testlog: the packages of the others are of a later tier.
func TestTiers(t *testing.T) {
	dirs, err := tiers.Tree("../..")
	if err != nil {
		t.Fatal(err)
	}
	var n [len(tier.Names)]int
	for _, d := range dirs {
		for _, broken := range d.Broken {
			t.Errorf("%s: %s", d.Path, broken)
		}
		for _, at := range d.Tests {
			n[at]++
		}
		for _, module := range []string{"build", "test/bench", "test/kube", "test/sim"} {
			if strings.HasPrefix(d.Path+"/", module+"/") && !d.Whole {
				t.Errorf("%s is in module %s, which make test does not compile: declare tier.Package(tier.OfAll)", d.Path, module)
			}
		}
	}
	for at, count := range n {
		if count == 0 {
			t.Errorf("no test is in tier %s", tier.Names[at])
		}
	}
}

// TestTiersAreHeld shows the reader of declarations what it must refuse.
func TestTiersAreHeld(t *testing.T) {
	root := t.TempDir()
	for file, text := range map[string]string{
		"whole/a_test.go":   "package a\n\nvar _ = tier.Package(tier.OfAll)\n\nfunc TestIn(t *testing.T) {}\nfunc TestTwice(t *testing.T) { tier.All(t) }\n",
		"own/b_test.go":     "package b\n\nfunc TestFirst(t *testing.T) { tier.All(t) }\nfunc TestLate(t *testing.T) { t.Parallel(); tier.All(t) }\nfunc TestLong(t *testing.T) { tier.Long(t) }\n",
		"own/c_test.go":     "package b\n\nfunc helper(t *testing.T) { tier.All(t) }\nfunc other(t *testing.T) { tier.Long(t) }\nfunc TestSub(t *testing.T) { t.Run(\"x\", func(t *testing.T) { tier.Long(t) }) }\n",
		"strange/d_test.go": "package d\n\nvar _ = tier.Package(tier.OfTest)\nfunc TestLateLong(t *testing.T) { t.Parallel(); tier.Long(t) }\n",
	} {
		file = filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	dirs, err := tiers.Tree(root)
	if err != nil || len(dirs) != 3 {
		t.Fatalf("%v, %d directories", err, len(dirs))
	}
	own, strange, whole := dirs[0], dirs[1], dirs[2]
	if len(own.Broken) != 3 || len(strange.Broken) != 2 || len(whole.Broken) != 1 {
		t.Errorf("refused: %q, %q, %q", own.Broken, strange.Broken, whole.Broken)
	}
	if own.Tests["TestFirst"] != tier.OfAll || own.Tests["TestLong"] != tier.OfLong || own.Tests["TestSub"] != tier.OfTest || whole.Tests["TestIn"] != tier.OfAll {
		t.Errorf("tiers: %v, %v", own.Tests, whole.Tests)
	}
}

// TestNoOtherTiers: no test asks the environment for its tier by itself.
func TestNoOtherTiers(t *testing.T) {
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasPrefix(path, "../../test/tier") || strings.HasSuffix(path, "tiers_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), `Getenv("`+tier.Var) || strings.Contains(string(text), "testing.Short(") {
			t.Errorf("%s: use package tier", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
