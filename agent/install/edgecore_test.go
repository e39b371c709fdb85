package install

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestWithNodeIP: one value changes, and every other byte stays; what is not written as usual is refused.
func TestWithNodeIP(t *testing.T) {
	const head = "# KubeEdge\nmodules:\n  edgeHub: {token: abc}\n"
	to := "10.244.1.1"
	for _, c := range []struct{ name, text, want, was string }{
		{"there", head + "  edged: # ours\n    nodeIP: 192.168.1.10 # of the LAN\n    enable: true\n", head + "  edged: # ours\n    nodeIP: 10.244.1.1 # of the LAN\n    enable: true\n", "192.168.1.10"},
		{"quoted", head + "  edged:\n    enable: true\n    nodeIP: \"192.168.1.10\"\n", head + "  edged:\n    enable: true\n    nodeIP: 10.244.1.1\n", "192.168.1.10"},
		{"empty", head + "  edged:\n    nodeIP: ''\n", head + "  edged:\n    nodeIP: 10.244.1.1\n", ""},
		{"not there", head + "  edged:\n\n    # first\n    enable: true\n", head + "  edged:\n\n    # first\n    nodeIP: 10.244.1.1\n    enable: true\n", "none"},
		{"CRLF, no newline at the end", "modules:\r\n  edged:\r\n    nodeIP: 192.168.1.10", "modules:\r\n  edged:\r\n    nodeIP: 10.244.1.1", "192.168.1.10"},
		{"another nodeIP", "modules:\n  other: {nodeIP: 1.1.1.1}\n  edged:\n    nodeIP: 192.168.1.10\n", "modules:\n  other: {nodeIP: 1.1.1.1}\n  edged:\n    nodeIP: 10.244.1.1\n", "192.168.1.10"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, was, err := withNodeIP([]byte(c.text), &to)
			if err != nil || string(got) != c.want {
				t.Fatalf("%q, %v, want %q", got, err, c.want)
			}
			if is := map[bool]string{true: "none"}[was == nil]; is == "" && *was != c.was || is != "" && is != c.was {
				t.Errorf("it was %v, want %q", was, c.was)
			}
			back, _, err := withNodeIP(got, was)
			want := strings.NewReplacer(`"192.168.1.10"`, "192.168.1.10", "nodeIP: ''", "nodeIP: ").Replace(c.text) // without the quotes
			if err != nil && c.was != "" || err == nil && string(back) != want {
				t.Errorf("back: %q, %v, want %q", back, err, want)
			}
		})
	}
	for name, text := range map[string]string{
		"empty":             "",
		"no YAML":           "\t{",
		"not edgecore's":    "modules: {cloudHub: {}}\n",
		"in braces":         "modules: {edged: {nodeIP: 192.168.1.10}}\n",
		"edged in braces":   "modules:\n  edged: {enable: true}\n",
		"an anchor":         "modules:\n  edged:\n    nodeIP: &ip 192.168.1.10\n",
		"over lines":        "modules:\n  edged:\n    nodeIP:\n      192.168.1.10\n",
		"nothing":           "modules:\n  edged:\n    nodeIP:\n",
		"a list":            "modules:\n  edged:\n    nodeIP: [192.168.1.10]\n",
		"twice":             "modules:\n  edged:\n    nodeIP: 1.1.1.1\n    nodeIP: 1.1.1.2\n",
		"escaped":           "modules:\n  edged:\n    nodeIP: \"\\x31.1.1.1\"\n",
		"an interface":      "modules:\n  edged:\n    customInterfaceName: eth1\n    nodeIP: 1.1.1.1\n",
		"edged is a scalar": "modules:\n  edged: true\n",
	} {
		if got, _, err := withNodeIP([]byte(text), &to); err == nil {
			t.Errorf("%s: no error, %q", name, got)
		} else if !errors.Is(err, errByHand) && name != "an interface" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzWithNodeIP: whatever edgecore's configuration is, an edit that is made can be read again.
func FuzzWithNodeIP(f *testing.F) {
	real, err := os.ReadFile("testdata/edgecore.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{string(real), "modules:\n  edged:\n    nodeIP: 192.168.1.10\n", "modules:\n  edged:\n    enable: true\n", "\xef\xbb\xbfmodules:\n  edged:\n    \"nodeIP\": 'x' # é\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		to := "10.244.1.1"
		out, _, err := withNodeIP(text, &to)
		if err != nil {
			return
		}
		edged, err := edgedOf(out)
		if err != nil {
			t.Fatalf("%q became %q: %v", text, out, err)
		}
		if _, v := child(edged, "nodeIP"); v == nil || v.Value != to {
			t.Fatalf("%q became %q", text, out)
		}
	})
}

// TestNodeIPOfEdgecore edits the configuration that edgecore v1.20.0 itself writes, keeps a copy, and takes the edit back.
func TestNodeIPOfEdgecore(t *testing.T) {
	real, err := os.ReadFile("testdata/edgecore.yaml")
	if err != nil {
		t.Fatal(err)
	}
	b := newBox(t, Systemd)
	b.put("run/edgemesh/subnet.json", subnet)
	file := filepath.Join(b.o.Root, edgeCore)
	b.put(edgeCore, string(real))
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	before := b.tree()
	b.o.NodeIP = NodeIPMesh
	b.install()
	wanted := strings.Replace(string(real), "  edged:\n", "  edged:\n    nodeIP: 10.244.1.1\n", 1)
	if text := b.tree()[edgeCore]; text != wanted {
		t.Errorf("%s:\n%s", edgeCore, text)
	}
	if b.tree()[edgeCoreBackup] != string(real) {
		t.Error("the copy differs")
	}
	for _, f := range []string{file, filepath.Join(b.o.Root, edgeCoreBackup)} {
		if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f, info.Mode(), err)
		}
	}
	b.install() // nothing new
	if b.restarts("edgecore.service") != 1 {
		t.Errorf("calls are %q: edgecore is restarted once", b.calls)
	}
	b.put("run/edgemesh/subnet.json", strings.ReplaceAll(subnet, "10.244.1.0", "10.244.7.0")) // another block
	b.install()
	if text := b.tree()[edgeCore]; text != strings.Replace(wanted, "10.244.1.1", "10.244.7.1", 1) || b.tree()[edgeCoreBackup] != string(real) {
		t.Errorf("another block:\n%s", text)
	}
	b.o.NodeIP = NodeIPOff
	b.install()
	if _, left := b.tree()[edgeCoreBackup]; left || b.tree()[edgeCore] != string(real) || b.restarts("edgecore.service") != 3 {
		t.Errorf("taken back: copy left %v, calls %q,\n%s", left, b.calls, b.tree()[edgeCore])
	}

	// The operator's later edit stays; so does the copy.
	b.o.NodeIP = NodeIPMesh
	b.install()
	mine := strings.Replace(b.tree()[edgeCore], "nodeIP: 10.244.7.1", "nodeIP: 10.9.9.9", 1)
	b.put(edgeCore, mine)
	b.o.Purge = true
	b.uninstall()
	b.said("kept     "+edgeCore, edgeCoreBackup)
	if b.tree()[edgeCore] != mine || b.tree()[edgeCoreBackup] != string(real) {
		t.Errorf("uninstalled:\n%s", b.tree()[edgeCore])
	}
	b.put(edgeCore, string(real))
	if err := os.Remove(filepath.Join(b.o.Root, edgeCoreBackup)); err != nil {
		t.Fatal(err)
	}
	b.o.Purge = false
	b.install()
	b.o.Purge = true
	b.uninstall()
	before["/run/edgemesh/subnet.json"] = b.tree()["/run/edgemesh/subnet.json"]
	if after := b.tree(); !maps.Equal(after, before) {
		t.Errorf("left %v, was %v", slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before)))
	}
}
