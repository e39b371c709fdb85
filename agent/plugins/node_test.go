package plugins

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"edgemesh/agent/findings"
	"edgemesh/internal/cni/detect"
)

func TestCheck(t *testing.T) {
	ours := detect.Found{Name: detect.Ours, Active: true, Evidence: []string{"configuration 10-edgemesh.conflist"}}
	block := netip.MustParsePrefix("10.244.1.0/24")
	bridge := func(active bool, subnets ...string) detect.Found {
		f := detect.Found{Name: detect.Bridge, Active: active, Evidence: []string{"configuration 05-bridge.conflist"}}
		for _, s := range subnets {
			f.PodCIDRs = append(f.PodCIDRs, netip.MustParsePrefix(s))
		}
		return f
	}
	cilium := detect.Found{Name: detect.Cilium, Active: true, Evidence: []string{"interface cilium_host"}}
	for _, c := range []struct {
		name  string
		found []detect.Found
		keep  bool
		want  findings.Severity
		text  string
	}{
		{"own, alone", []detect.Found{ours}, false, findings.OK, "own"},
		{"own, shadowed", []detect.Found{bridge(true), ours}, false, findings.Broken, "05-bridge.conflist"},
		{"own, left-over", []detect.Found{ours, bridge(false)}, false, findings.Warning, "bridge"},
		{"own, packages' files after ours", []detect.Found{ours, {Name: detect.Bridge, Evidence: []string{"configuration 87-podman.conflist"}},
			{Name: detect.Unknown, Evidence: []string{"configuration 200-loopback.conf"}}}, false, findings.OK, "own"},
		{"own, and a bridge's interface", []detect.Found{ours, {Name: detect.Bridge, Evidence: []string{"configuration 87-podman.conflist", "interface cni0"}}}, false, findings.Warning, "cni0"},
		{"keep, none", nil, true, findings.Warning, "no other"},
		{"keep", []detect.Found{bridge(true, "10.244.1.0/24")}, true, findings.OK, "05-bridge.conflist"},
		{"keep, part of the block", []detect.Found{bridge(true, "10.244.1.64/26")}, true, findings.OK, "bridge"},
		{"keep, other block", []detect.Found{bridge(true, "10.244.2.0/24")}, true, findings.Broken, "10.244.2.0/24, but"},
		{"keep, larger block", []detect.Found{bridge(true, "10.244.0.0/16")}, true, findings.Broken, "10.244.0.0/16"},
		{"keep, past the routing table", []detect.Found{cilium}, true, findings.Warning, "cilium"},
	} {
		f := Check(c.found, c.keep, []netip.Prefix{block})
		if f.Severity != c.want || !strings.Contains(f.Text, c.text) || (f.Remedy == "") != (c.want == findings.OK) {
			t.Errorf("%s: %+v", c.name, f)
		}
	}
}

func TestAnnotationsTellOfOtherPlugins(t *testing.T) {
	found := Plugins("", map[string]string{"flannel.alpha.coreos.com/backend-type": "vxlan"})
	if f := Check(found, false, nil); !strings.Contains(f.Text, "annotation flannel.alpha.coreos.com/backend-type") {
		t.Errorf("%+v", f)
	}
}

// The runtime stops at a file that it cannot read where that comes before ours, and reads none that comes after.
func TestBroken(t *testing.T) {
	const good = `{"cniVersion": "1.0.0", "name": "edgemesh", "plugins": [{"type": "edgemesh-cni"}]}`
	for _, x := range []struct {
		name, text string
		broken     bool
	}{
		{"00-multus.conf", "", true},
		{"00-multus.conf", "\x00\x00\x00", true},
		{"00-multus.conf", good, true}, // a list in a file for one plugin
		{"00-multus.conflist", `{"cniVersion": "1.0.0", "name": "x", "plugins": []}`, true},
		{"00-x.json", `{"cniVersion": "1.0.0", "name": "x"}`, true},
		{"00-x.conf", `{"cniVersion": "1.0.0", "name": "x", "type": "bridge"}`, false}, // wins: another finding
		{"00-x.conf.bak", "", false},
		{"99-loopback.conf", "", false},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{"10-edgemesh.conflist": good, x.name: x.text} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		file, err := Broken(dir)
		if (err != nil) != x.broken || x.broken && filepath.Base(file) != x.name || !x.broken && file != "" {
			t.Errorf("%s %q: %q, %v", x.name, x.text, file, err)
		}
	}
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "00-fifo.conf"), 0o600); err != nil { // opened as usual it holds whoever reads it
		t.Fatal(err)
	}
	if file, err := Broken(dir); filepath.Base(file) != "00-fifo.conf" || err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a FIFO: %q, %v", file, err)
	}
	if f, found := Rival(dir); found {
		t.Errorf("a FIFO: %+v", f)
	}
	if file, err := Broken("/nonexistent"); file != "" || err != nil {
		t.Errorf("no directory: %q, %v", file, err)
	}
}

func TestLook(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "10-x.conf"), []byte(`{"type":"bridge"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "old.d"), 0o700); err != nil {
		t.Fatal(err)
	}
	n := look(dir)
	if len(n.Conf) != 1 || len(n.Links) == 0 {
		t.Errorf("seen: %v, links %v", n.Conf, n.Links)
	}
	if n := look(""); len(n.Conf) != 0 {
		t.Errorf("no directory: %v", n.Conf)
	}
}
