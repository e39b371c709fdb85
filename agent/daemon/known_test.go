package daemon

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"edgemesh/internal/config"
	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/snapshot"
)

// A node that is configured with another member's name never gets that member's blocks: its key says that it is another machine.
func TestAnotherMembersName(t *testing.T) {
	_, first := keytest.New(t)
	_, second := keytest.New(t)
	_, fresh := keytest.New(t)
	s := mesh.State{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Encryption: mesh.EncryptionAlways, Access: mesh.Access{HostAccess: mesh.HostAll},
		Nodes: []mesh.Node{
			{Name: "edge-1", PeerID: mesh.PeerID(first.String()), PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}},
			{Name: "edge-2", PeerID: mesh.PeerID(second.String()), PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}},
		}}
	cfg := config.Config{NodeName: "edge-2", StateDir: t.TempDir()}
	if err := snapshot.Save(cfg.StateDir, s); err != nil {
		t.Fatal(err)
	}
	_, err := planFor(s, cfg, first)
	if err == nil || errors.As(err, new(otherKeyError)) || !strings.Contains(err.Error(), "key is that of edge-1; set nodeName: edge-1") {
		t.Errorf("edge-1 under the name edge-2: %v", err)
	}
	if _, err := planFor(s, cfg, fresh); !errors.As(err, new(otherKeyError)) {
		t.Errorf("a new key: %v", err)
	}
	for id, want := range map[mesh.PeerID]bool{mesh.PeerID(first.String()): false, mesh.PeerID(second.String()): true, mesh.PeerID(fresh.String()): true, "": true} {
		p, err := (&localPods{cfg: cfg, id: id}).plan("")
		if (err == nil) != want || want && p.Self.Name != "edge-2" {
			t.Errorf("own pods with the key %q: %v, %v", id, p.Self, err)
		}
	}
	if _, err := (&localPods{cfg: cfg}).plan(mesh.PeerID(fresh.String())); err == nil {
		t.Error("the membership lists another key than the snapshot, and its blocks were taken")
	}
}
