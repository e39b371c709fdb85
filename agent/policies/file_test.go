package policies

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"edgemesh/agent/policy"
)

// TestClusterFile: a file's ClusterNetworkPolicies are in force for its pods; pods of namespaces that the file does not have are closed, and
// a key that is not known refuses the file.
func TestClusterFile(t *testing.T) {
	const text = `
kind: Namespace
metadata: {name: shop}
---
kind: Namespace
metadata: {name: free, labels: {trusted: "yes"}}
---
kind: Pod
metadata: {namespace: shop, name: web-0}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: no-metadata-service}
spec:
  tier: Admin
  priority: 10
  subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: shop}, matchExpressions: [{key: trusted, operator: DoesNotExist}]}}
  egress: [{action: Deny, to: [{networks: [169.254.169.254/32]}], protocols: [{tcp: {destinationPort: {number: 80}}}]}]
`
	f := &fake{}
	o, c := owner(t, f, t.TempDir())
	path := filepath.Join(t.TempDir(), "policies.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		o.readFile(path)
	}
	record := `{"ip":"10.1.1.3","network":"edgemesh","containerID":"d","ifName":"eth0","namespace":"other","pod":"db-0","allocated":"2026-01-02T03:04:05Z"}`
	if err := os.WriteFile(filepath.Join(c.DataDir, "10.1.1.3_other_db-0"), []byte(record), 0o600); err != nil {
		t.Fatal(err)
	}
	write(text)
	for _, x := range []struct {
		from, to string
		port     uint16
		want     bool
	}{{"10.1.1.2", "169.254.169.254", 80, false}, {"10.1.1.2", "169.254.169.254", 81, true}, {"10.1.1.3", "8.8.8.8", 80, false}} {
		if pass, by, _ := f.placed.Verdict(policy.Packet{Src: netip.MustParseAddr(x.from), Dst: netip.MustParseAddr(x.to), Protocol: 6, Port: x.port}); pass != x.want {
			t.Errorf("%+v: passes %t, by %v; %+v", x, pass, by, o.InForce().Problem)
		}
	}
	file := closing(t, c)
	for namespace, want := range map[string][]string{"other": {"Egress"}, "shop": {"Egress"}, "free": {}} {
		if got := file.Closed(namespace); !slices.Equal(got, want) {
			t.Errorf("the plugin closes %v of namespace %s", got, namespace)
		}
	}
	for _, wrong := range [][2]string{{"priority: 10", "prio: 10"}, {"name: no-metadata-service", "namespace: shop, name: x"}, {"tier: Admin", "tier: Other"}, {"networks: [169.254.169.254/32]", "nodes: {}"}} {
		if write(strings.Replace(text, wrong[0], wrong[1], 1)); o.InForce().Problem == nil || !strings.Contains(o.InForce().Problem.Error(), "document 4: ") || len(f.placed.At) != 4 { // and their link-local addresses
			t.Errorf("%s: %v, in force %+v", wrong[1], o.InForce().Problem, f.placed.At)
		}
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
