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
	why   string
}

// unused parts of libp2p are large, and so are Kubernetes' own encoders, which most of client-go and API machinery brings.
var unused = []string{
	"github.com/libp2p/go-libp2p/config", "github.com/pion/webrtc", "github.com/quic-go/webtransport-go", "go.uber.org/fx",
	"k8s.io/client-go/rest", "k8s.io/client-go/tools/clientcmd", "k8s.io/client-go/kubernetes", "k8s.io/api", "k8s.io/apimachinery/pkg/runtime", "k8s.io/apimachinery/pkg/apis",
}

var rules = []rule{
	{
		path: "edgemesh/agent/mesh",
		not:  []string{"edgemesh", "github.com/libp2p", "github.com/vishvananda", "k8s.io"},
		why:  "mesh decides purely and imports nothing of ours",
	}, {
		path: "edgemesh/agent/host/plan",
		not:  []string{"github.com/vishvananda", "github.com/google/nftables", "github.com/coreos", "os/exec"},
		why:  "the plan is made purely",
	}, {
		path: "edgemesh/agent/host/verdict",
		not:  []string{"github.com/vishvananda", "github.com/google/nftables", "github.com/coreos", "os/exec"},
		why:  "packets are followed purely",
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
		why: "the packet way is joined to devices and libp2p in agent",
	}, {
		path: "edgemesh/tunnel/tun", below: true,
		not: []string{"edgemesh/tunnel/p2p", "edgemesh/agent", "edgemesh/relay", "github.com/libp2p"},
		why: "a device knows no network",
	}, {
		path: "edgemesh/tunnel/p2p", below: true,
		not: []string{"edgemesh/tunnel/tun", "edgemesh/agent", "edgemesh/relay", "edgemesh/cni"},
		why: "p2p knows no packets",
	}, {
		path: "edgemesh/tunnel/p2p", below: true, not: unused, why: "package plainhost leaves out what is not used",
	}, {
		path: "edgemesh/relay", not: unused, why: "package plainhost leaves out what is not used",
	}, {
		path: "edgemesh/agent", not: unused, why: "package plainhost leaves out what is not used",
	}, {
		path: "edgemesh/agent/fleet", below: true,
		not: []string{"edgemesh/tunnel", "edgemesh/agent/host", "edgemesh/cni", "github.com/libp2p", "github.com/vishvananda", "k8s.io", "golang.org/x/sys/unix"},
		why: "kubectl runs on other systems, too",
	}, {
		path: "edgemesh/cni", below: true,
		not: []string{"edgemesh/agent", "edgemesh/tunnel", "edgemesh/relay", "github.com/libp2p", "k8s.io"},
		why: "the plugin works without the agent",
	}, {
		path: "edgemesh/relay", below: true,
		not: []string{"edgemesh/tunnel/tun", "edgemesh/agent/host", "edgemesh/agent/daemon", "edgemesh/cni"},
		why: "the relay touches no kernel state",
	},
}

// goPackage is what `go list` says of a package.
type goPackage struct {
	ImportPath string
	Imports    []string // direct ones
	Deps       []string // all
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

// p2pFloors are the rooms of tunnel/p2p, the lowest floor first. A room imports rooms of
// lower floors only; TestP2PDrawing holds DESIGN.md there to them.
var p2pFloors = [][]string{
	{"endpoint", "conns", "ladder", "mux", "places", "portguess", "proxy", "refusals", "relays/choice", "sealed", "session", "streamguard", "stun", "wan"},
	{"book", "identity", "knock", "members", "nat", "socket", "targets"},
	{"plainhost"},
	{"dialer", "enroll", "join", "lobby", "packet", "relays", "relayservice", "uplinks"},
	{"mdns", "paths", "portmap", "punch"},
	{"reach"},
	{"peers"},
	{""}, // the node
}

func TestP2PFloors(t *testing.T) {
	const house = "edgemesh/tunnel/p2p"
	floor := map[string]int{}
	for i, rooms := range p2pFloors {
		for _, r := range rooms {
			floor[strings.TrimSuffix(house+"/"+r, "/")] = i
		}
	}
	for _, p := range list(t) {
		if p.ImportPath != house && !under(p.ImportPath, house) || strings.HasSuffix(path.Base(p.ImportPath), "test") {
			continue
		}
		at, known := floor[p.ImportPath]
		if !known {
			t.Errorf("%s has no floor: add it to p2pFloors, and to DESIGN.md", p.ImportPath)
		}
		for _, i := range p.Imports {
			if below, ours := floor[i]; ours && below >= at {
				t.Errorf("%s imports %s, which is not on a lower floor", p.ImportPath, i)
			}
		}
	}
}

// TestP2PDrawing holds the drawing in tunnel/p2p/DESIGN.md to the floors: every room stands in a line that ends with the
// number of its floor.
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
	drawn := map[string]bool{} // "room floor"
	for line := range strings.Lines(parts[1]) {
		words := strings.FieldsFunc(line, func(r rune) bool { return unicode.IsSpace(r) || r == ':' })
		for _, w := range words {
			drawn[w+" "+words[len(words)-1]] = true
		}
	}
	for i, rooms := range p2pFloors {
		for _, r := range rooms {
			if r == "" {
				r = "p2p"
			}
			if !drawn[fmt.Sprintf("%s %d", r, i+1)] {
				t.Errorf("tunnel/p2p/DESIGN.md does not draw %s on floor %d", r, i+1)
			}
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
