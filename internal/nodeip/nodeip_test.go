package nodeip

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"edgemesh/internal/cni/conf"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/snapshot"
	"edgemesh/internal/placed"
)

func addrs(text ...string) (out []netip.Addr) {
	for _, t := range text {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

func cidrs(text ...string) (out []netip.Prefix) {
	for _, t := range text {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func TestPresent(t *testing.T) {
	got, err := Present(addrs("127.0.0.1", "203.0.113.77"))
	if err != nil || !slices.Equal(got, addrs("127.0.0.1")) {
		t.Errorf("%v, %v", got, err)
	}
}

// TestRecorded: an installation without --node-ip told kubelet nothing. Package install writes the file.
func TestRecorded(t *testing.T) {
	dir := t.TempDir()
	for content, want := range map[string][]netip.Addr{"": nil, `{"form":"systemd","files":{}}`: nil, `{"nodeIP":["10.244.1.1","fd00::1"]}`: addrs("10.244.1.1", "fd00::1")} {
		if content != "" {
			if err := os.WriteFile(filepath.Join(dir, placed.RecordFile), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := Recorded(dir); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v; want %v", content, got, err, want)
		}
		if err := os.RemoveAll(filepath.Join(dir, placed.RecordFile)); err != nil {
			t.Fatal(err)
		}
	}
}

// The name is the plugin's.
func TestSubnetFile(t *testing.T) {
	if subnetFile != conf.SubnetFile {
		t.Errorf("%s, the plugin reads %s", subnetFile, conf.SubnetFile)
	}
}

// TestLoad: the subnet file is what runs now; the snapshot is all there is after an offline boot.
func TestLoad(t *testing.T) {
	run, state := t.TempDir(), t.TempDir()
	load := func(node string, want ...string) {
		t.Helper()
		if got, err := Load(run, state, node); err != nil || !slices.Equal(got, addrs(want...)) {
			t.Errorf("%s: %v, %v; want %v", node, got, err, want)
		}
	}
	fails := func(node string, parts ...string) {
		t.Helper()
		_, err := Load(run, state, node)
		if !errors.Is(err, ErrNoBlock) {
			t.Fatalf("%s: %v", node, err)
		}
		for _, p := range parts {
			if !strings.Contains(err.Error(), p) {
				t.Errorf("%s: no %q in %v", node, p, err)
			}
		}
	}
	fails("edge-1", run, state)
	s := mesh.State{PodCIDRs: cidrs("10.244.0.0/16", "fd00::/48"), Encryption: mesh.EncryptionAuto, Nodes: []mesh.Node{
		{Name: "edge-1", PeerID: "E1", PodCIDRs: cidrs("10.244.1.0/24", "10.244.9.0/24", "fd00:0:0:1::/64")},
		{Name: "edge-6", PeerID: "E6", PodCIDRs: cidrs("fd00:0:0:6::/64")}}}
	if err := snapshot.Save(state, s); err != nil {
		t.Fatal(err)
	}
	load("edge-1", "10.244.1.1", "fd00:0:0:1::1")
	load("edge-6", "fd00:0:0:6::1")
	fails("edge-2", `"edge-2"`, "nodeName")
	file := filepath.Join(run, conf.SubnetFile)
	if err := os.WriteFile(file, []byte(`{"podCIDRs":["10.244.3.0/24"],"clusterCIDRs":[],"mtu":1500}`), 0o600); err != nil {
		t.Fatal(err)
	}
	load("edge-1", "10.244.3.1")
	if err := os.WriteFile(file, []byte(`{"podCI`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(run, state, "edge-1"); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("torn subnet file: %v", err)
	}
}
