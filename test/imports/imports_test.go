// Package imports holds the direction of dependencies between the directories.
package imports

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"edgemesh/test/repo"
)

// rule says what the packages at a path must not depend on, directly or through others.
type rule struct {
	path  string
	below bool     // it holds for the packages below path, too
	not   []string // packages, and all below them
	self  []string // what they must not import themselves, whatever others do
	why   string
}

// unused parts of libp2p are large, and so are the types of all of Kubernetes' API groups, which client-go's clientset and
// its leaderelection register: 13.3 MB.
var unused = []string{
	"github.com/libp2p/go-libp2p/config", "github.com/pion/webrtc", "github.com/quic-go/webtransport-go", "go.uber.org/fx",
	"k8s.io/client-go/kubernetes", "k8s.io/client-go/dynamic", "k8s.io/client-go/discovery", "k8s.io/client-go/tools/cache", "k8s.io/api",
}

var rules = []rule{
	{
		path: "edgemesh/internal/membership/mesh",
		not:  []string{"edgemesh", "github.com/libp2p", "github.com/vishvananda", "k8s.io"},
		self: []string{"os", "net", "syscall", "context", "log/slog"},
		why:  "mesh decides purely and imports nothing of ours",
	}, {
		path: "edgemesh/internal/screen",
		self: []string{"syscall", "golang.org/x/sys"},
		why:  "the plugin of kubectl is built for macOS and Windows, too",
	}, {
		path: "edgemesh/agent/host/plan",
		not:  []string{"github.com/vishvananda", "github.com/google/nftables", "github.com/coreos", "os/exec"},
		why:  "the plan is made purely",
	}, {
		path: "edgemesh/agent/policy/compile",
		not:  []string{"edgemesh", "github.com/vishvananda", "github.com/google/nftables"},
		self: []string{"os", "net", "context", "log/slog"},
		why:  "policies are compiled purely",
	}, {
		path: "edgemesh/agent/host/probe",
		not:  []string{"edgemesh/agent/host/rtnetlink", "edgemesh/agent/host/iptables", "edgemesh/agent/control"},
		why:  "packets are made and sent, others say what became of them",
	}, {
		path: "edgemesh/agent/host/sysctl",
		not:  []string{"edgemesh/agent/host/rtnetlink", "edgemesh/agent/host/nft", "edgemesh/agent/host/iptables"},
		why:  "sysctls are below interfaces",
	}, {
		path: "edgemesh/agent/host/rtnetlink",
		not:  []string{"edgemesh/agent/host/nft", "edgemesh/agent/host/iptables", "edgemesh/agent/control"},
		why:  "a room knows its own part of the kernel, and reports nothing itself",
	}, {
		path: "edgemesh/agent/host/nft",
		not:  []string{"edgemesh/agent/host/rtnetlink", "edgemesh/agent/host/iptables", "edgemesh/agent/control"},
		why:  "a room knows its own part of the kernel, and reports nothing itself",
	}, {
		path: "edgemesh/agent/host/iptables",
		not:  []string{"edgemesh/agent/host/rtnetlink", "edgemesh/agent/host/nft", "edgemesh/agent/control"},
		why:  "a room knows its own part of the kernel, and reports nothing itself",
	}, {
		path: "edgemesh/tunnel/inet", below: true,
		not: []string{"edgemesh", "github.com"},
		why: "packets are bytes",
	}, {
		path: "edgemesh/tunnel/virtio",
		not:  []string{"edgemesh/tunnel/tun", "edgemesh/tunnel/p2p", "edgemesh/agent", "edgemesh/relay", "github.com"},
		why:  "frames are bytes",
	}, {
		path: "edgemesh/tunnel",
		not: []string{
			"edgemesh/tunnel/tun", "edgemesh/tunnel/p2p", "edgemesh/agent", "edgemesh/relay", "github.com/libp2p",
			"github.com/vishvananda",
		},
		why: "the tunnel is joined to devices and libp2p in agent",
	}, {
		path: "edgemesh/tunnel/tun", below: true,
		not: []string{"edgemesh/tunnel/p2p", "edgemesh/agent", "edgemesh/relay", "github.com/libp2p"},
		why: "a device knows no network",
	}, {
		path: "edgemesh/tunnel/p2p", below: true,
		not: []string{"edgemesh/tunnel/tun", "edgemesh/agent", "edgemesh/relay", "edgemesh/cni", "edgemesh/internal/cni"},
		why: "p2p knows no packets",
	}, {
		path: "edgemesh/tunnel/p2p/carrier/control",
		not:  []string{"edgemesh", "github.com", "os", "net", "time", "context", "log/slog"},
		why:  "the controller is pure",
	}, {
		path: "edgemesh/tunnel/choice",
		not:  []string{"edgemesh", "github.com"},
		self: []string{"os", "net", "context", "log/slog", "sync"},
		why:  "the carrier is chosen purely",
	}, {
		path: "edgemesh/tunnel/p2p/carrier/flight",
		not:  []string{"edgemesh/agent", "edgemesh/internal", "edgemesh/relay", "github.com", "os", "net", "context", "log/slog"},
		self: []string{"time", "edgemesh/tunnel", "edgemesh/tunnel/p2p/carrier/sealed", "edgemesh/tunnel/p2p/carrier/packet"},
		why:  "the transport is pure",
	}, {
		path: "edgemesh/tunnel/p2p", below: true, not: unused, why: "package plainhost leaves out what is not used",
	}, {
		path: "edgemesh/relay", not: unused, why: "package plainhost leaves out what is not used",
	}, {
		path: "edgemesh/agent", not: unused, why: "package plainhost leaves out what is not used",
	}, {
		path: "edgemesh/agent/fleet", below: true,
		not: []string{"edgemesh/tunnel", "edgemesh/agent/host", "edgemesh/cni", "edgemesh/internal/cni", "github.com/libp2p", "github.com/vishvananda", "k8s.io"},
		why: "kubectl runs on other systems, too",
	}, {
		path: "edgemesh/cni", below: true,
		not: []string{"edgemesh/agent", "edgemesh/tunnel", "edgemesh/relay", "github.com/libp2p", "k8s.io"},
		why: "the plugin works without the agent",
	}, {
		path: "edgemesh/internal/cni", below: true,
		not: []string{"github.com/libp2p", "k8s.io"},
		why: "the plugin starts for each pod and is small",
	}, {
		path: "edgemesh/relay", below: true,
		not: []string{"edgemesh/tunnel/tun", "edgemesh/agent", "edgemesh/cni", "edgemesh/internal/cni"},
		why: "the relay touches no kernel state and is no agent",
	}, {
		path: "edgemesh/internal", below: true,
		not: []string{"edgemesh/agent", "edgemesh/cni", "edgemesh/relay", "edgemesh/tunnel"},
		why: "what programs share knows none of them",
	},
}

// goPackage is what `go list` says of a package.
type goPackage struct {
	ImportPath string
	Imports    []string // direct ones
	Deps       []string // all
}

// The plugin builds for the systems that kubectl runs on: a package without a file for one is an error.
func TestOtherSystems(t *testing.T) {
	for _, system := range []string{"darwin", "windows"} {
		c := exec.Command("go", "list", "-deps", "edgemesh/agent/kubectl-edgemesh")
		c.Env = append(os.Environ(), "GOOS="+system, "GOARCH=amd64")
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", system, err, out)
		}
	}
}

func TestImportDirection(t *testing.T) {
	ours := list(t)
	for _, r := range rules {
		checked := 0
		for _, p := range ours {
			if p.ImportPath != r.path && !(r.below && under(p.ImportPath, r.path)) {
				continue
			}
			checked++
			for _, i := range p.Imports {
				if slices.Contains(r.self, i) {
					t.Errorf("%s imports %s: %s", p.ImportPath, i, r.why)
				}
			}
			for _, d := range p.Deps {
				if r.forbids(d) {
					t.Errorf("%s depends on %s: %s", p.ImportPath, d, r.why)
				}
			}
		}
		if checked == 0 {
			t.Errorf("no package at %s: this test looks at nothing there", r.path)
		}
	}
}

// forbids says whether a dependency breaks the rule. The rule's own directory does not.
func (r rule) forbids(dep string) bool {
	if dep == r.path || r.below && under(dep, r.path) {
		return false
	}
	for _, no := range r.not {
		if dep == no || under(dep, no) {
			return true
		}
	}
	return false
}

// The rooms of a house do not know the house: a package imports none whose directory it is
// in. Helpers of tests (…test) may.
func TestRoomsKnowNoHouse(t *testing.T) {
	for _, p := range list(t) {
		if strings.HasSuffix(path.Base(p.ImportPath), "test") {
			continue
		}
		for _, i := range p.Imports {
			if under(p.ImportPath, i) {
				t.Errorf("%s imports %s, which is above it: hand it what it needs", p.ImportPath, i)
			}
		}
	}
}

// p2pWings are the wings of tunnel/p2p, the lowest first; wings in one row do not import each other. A package imports
// packages of its own wing and of lower ones. TestP2PDrawing holds DESIGN.md there to them.
var p2pWings = [][]string{{"base"}, {"who"}, {"carrier"}, {"nat"}, {"relay", "admission"}, {"path"}}

const p2pHouse = "edgemesh/tunnel/p2p"

// wing returns the wing of a package of tunnel/p2p and its row; the node itself is above all wings and has no name.
func wing(pkg string) (name string, row int, known bool) {
	if pkg == p2pHouse {
		return "", len(p2pWings), true
	}
	if !under(pkg, p2pHouse) {
		return "", 0, false
	}
	name, _, _ = strings.Cut(strings.TrimPrefix(pkg, p2pHouse+"/"), "/")
	for i, row := range p2pWings {
		if slices.Contains(row, name) {
			return name, i, true
		}
	}
	return name, 0, false
}

func TestP2PWings(t *testing.T) {
	for _, p := range list(t) {
		if p.ImportPath != p2pHouse && !under(p.ImportPath, p2pHouse) || strings.HasSuffix(path.Base(p.ImportPath), "test") {
			continue
		}
		at, row, known := wing(p.ImportPath)
		if !known {
			t.Errorf("%s is in no wing: move it into one, or add the wing to p2pWings and to DESIGN.md", p.ImportPath)
		}
		for _, i := range p.Imports {
			if other, below, ours := wing(i); ours && other != at && below >= row {
				t.Errorf("%s imports %s, whose wing is not below", p.ImportPath, i)
			}
		}
	}
}

// TestP2PDrawing holds the drawing in tunnel/p2p/DESIGN.md to the tree: every package stands in a line that begins with
// its wing.
func TestP2PDrawing(t *testing.T) {
	root, err := repo.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "tunnel/p2p/DESIGN.md"))
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.SplitN(string(page), "```", 3)
	if len(parts) < 3 {
		t.Fatal("no drawing")
	}
	drawn := map[string]bool{} // "wing package"
	at := ""
	for line := range strings.Lines(parts[1]) {
		words := strings.FieldsFunc(line, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
		if len(words) > 0 && !unicode.IsSpace(rune(line[0])) {
			at = words[0]
		}
		for _, w := range words {
			drawn[at+" "+w] = true
		}
	}
	for _, p := range list(t) {
		if name, _, known := wing(p.ImportPath); known && name != "" && !drawn[name+" "+path.Base(p.ImportPath)] &&
			!strings.HasSuffix(path.Base(p.ImportPath), "test") {
			t.Errorf("tunnel/p2p/DESIGN.md does not draw %s in wing %s", path.Base(p.ImportPath), name)
		}
	}
}

// TestNoTemplates: they call methods by names that only the page knows, so the linker keeps every exported method of a
// program that has one, 15 % of it. Cobra's are linked by SetVersionTemplate and the like alone.
func TestNoTemplates(t *testing.T) {
	for _, p := range list(t) {
		for _, i := range p.Imports {
			if path.Base(i) == "template" && !under(p.ImportPath, "edgemesh/test") && !under(p.ImportPath, "edgemesh/build") {
				t.Errorf("%s imports %s", p.ImportPath, i)
			}
		}
	}
}

func TestForbids(t *testing.T) {
	r := rule{path: "a/b", below: true, not: []string{"a/c", "x.io"}}
	for dep, want := range map[string]bool{
		"a/c":    true,
		"a/c/d":  true,
		"a/cd":   false,
		"a/b/c":  false,
		"x.io/y": true,
		"fmt":    false,
	} {
		if got := r.forbids(dep); got != want {
			t.Errorf("%s is forbidden: %v, want %v", dep, got, want)
		}
	}
}

func under(pkg, directory string) bool { return strings.HasPrefix(pkg, directory+"/") }

// list has our packages.
func list(t *testing.T) []goPackage {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,Deps", "edgemesh/...").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatalf("go list: %v", err)
		}
		all = append(all, p)
	}
}
