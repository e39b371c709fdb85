package house

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"edgemesh/test/repo"
)

// pins are modules that hold versions of foreign programs and no code of ours: scripts build them, without go.work.
var pins = []string{"test/bench/nebula", "test/bench/wireguard", "test/cni/testdata/cri", "test/cni/testdata/critest", "test/cni/testdata/plugins", "test/kube/conformance/binaries", "test/kubeapi/binaries"}

// golist is what `go list` prints in the source tree, a line each; GOWORK=off looks at the shipped module alone.
func golist(t *testing.T, env string, args ...string) []string {
	t.Helper()
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("go", append([]string{"list"}, args...)...)
	c.Dir, c.Env = root, append(os.Environ(), env)
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("go list %v: %v: %s", args, err, stderr.String())
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// TestWorkspace holds go.work to the tree: every directory with Go files is in one of its modules, so that `go vet work` and
// the like leave none out.
func TestWorkspace(t *testing.T) {
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	packages := golist(t, "GOWORK=", "-find", "-f", "{{.Dir}}", "work")
	for _, d := range directories(t) {
		if !slices.Contains(pins, d.path) && !slices.Contains(packages, filepath.Join(root, d.path)) {
			t.Errorf("%s: no module in go.work has this package", d.path)
		}
	}
}

// TestShippedVersions: what the other modules require must not change what the programs are tested with. They are built by
// go.mod alone, tests run in the workspace.
func TestShippedVersions(t *testing.T) {
	args := []string{"-deps", "-f", "{{with .Module}}{{.Path}} {{.Version}}{{end}}", "./agent", "./cni", "./relay"}
	tested := golist(t, "GOWORK=", args...)
	for _, shipped := range golist(t, "GOWORK=off", args...) {
		if shipped != "" && !slices.Contains(tested, shipped) {
			t.Errorf("go.mod has %s, the workspace another version: require the same in all modules (go work sync)", shipped)
		}
	}
}

// TestDependabot: updates are proposed for every module in go.work.
func TestDependabot(t *testing.T) {
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, dir := range golist(t, "GOWORK=", "-m", "-f", "{{.Dir}}") {
		want = append(want, "/"+strings.TrimPrefix(strings.TrimPrefix(dir, root), "/"))
	}
	text, err := os.ReadFile(filepath.Join(root, ".github/dependabot.yml"))
	if line := "directories: [" + strings.Join(want, ", ") + "]\n"; err != nil || !strings.Contains(string(text), line) {
		t.Errorf(".github/dependabot.yml has no %q (%v)", line, err)
	}
}

// TestEveryModule: what checks the code checks all modules. The pattern ./... names those of one.
func TestEveryModule(t *testing.T) {
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string][]string{
		"Makefile":      {"test $$($(GO) list work", "$(LINT) run $$($(GO) list -m -f '{{.Dir}}/...')"},
		"build/test.sh": {"go list -find work | grep -Ev \"$others\"", "go list -find work | grep -vxFf <(own)"},
		"build/vuln.sh": {"govulncheck\" -db \"$db\" -test=false work"},
	} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(string(text), w) {
				t.Errorf("%s has no %q", file, w)
			}
		}
		if at := regexp.MustCompile(`[^\w/}]\./\.\.\.`).FindIndex(text); at != nil {
			t.Errorf("%s: %q leaves out all modules but one: use the pattern work", file, text[max(0, at[0]-30):at[1]])
		}
	}
}
