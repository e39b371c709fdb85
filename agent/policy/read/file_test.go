package read

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	policy "edgemesh/agent/policy/compile"
	"edgemesh/agent/policy/enforce"
	"edgemesh/internal/membership/mesh"
)

// TestClusterPolicyInAFile: a ClusterNetworkPolicy refuses the file, which says what is used in its place.
func TestClusterPolicyInAFile(t *testing.T) {
	var given []enforce.Given
	f := NewFile(Config{Local: func() (map[netip.Addr]string, error) { return nil, nil }, Set: func(g enforce.Given) { given = append(given, g) }, SetOff: func(bool) {}})
	path := filepath.Join(t.TempDir(), "policies.yaml")
	const good = "kind: Pod\nmetadata: {namespace: shop, name: web-0}\n---\nkind: NetworkPolicy\nmetadata: {namespace: shop, name: p}\nspec: {podSelector: {}}\n"
	const bad = "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: lan}\nspec: {tier: Admin, priority: 10, subject: {namespaces: {}}}\n"
	for _, text := range []string{good, good + bad} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f.SetState(mesh.State{Policies: mesh.Policies{PolicyFile: path}})
		f.changed(path)
	}
	if n := len(given); n != 3 || given[1].Err != nil || len(given[1].Rules.Pods) != 1 {
		t.Fatalf("%+v", given)
	}
	if err := given[2].Err; err == nil || !strings.Contains(err.Error(), "document 3: ClusterNetworkPolicy lan") || !strings.Contains(err.Error(), "podDenyCIDRs") {
		t.Errorf("%v", err)
	}
}

// TestNamespaceWithoutADocument: pods of a namespace that has none are peers all the same.
func TestNamespaceWithoutADocument(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(path, []byte(`
kind: Pod
metadata: {namespace: shop, name: web-0, labels: {app: web}}
---
kind: Pod
metadata: {namespace: shop, name: db-0, labels: {app: db}}
---
kind: NetworkPolicy
metadata: {namespace: shop, name: db}
spec: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}, namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}}]}]}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := parseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	web, db := netip.MustParseAddr("10.1.1.2"), netip.MustParseAddr("10.1.1.3")
	local := map[netip.Addr]string{web: "shop/web-0", db: "shop/db-0"}
	placed := w.rules(local).Place(local)
	for from, want := range map[netip.Addr]bool{web: true, netip.MustParseAddr("10.1.1.4"): false} {
		if pass, by, _ := placed.Verdict(policy.Packet{Src: from, Dst: db, Protocol: 6, Port: 80}); pass != want {
			t.Errorf("from %s: passes %t, by %v", from, pass, by)
		}
	}
}
