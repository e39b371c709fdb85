package daemon

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	policy "edgemesh/agent/policy/compile"
	"edgemesh/agent/policy/enforce"
	"edgemesh/agent/policy/read"
	"edgemesh/internal/cni/conf"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/mesh"
)

// holding is a kernel that holds whatever it is given.
type holding struct{ enforce.Kernel }

func (holding) Enforce(place func() (policy.Placed, error)) error { _, err := place(); return err }
func (holding) Missing() string                                   { return "" }
func (holding) Partly() string                                    { return "" }

// TestPoliciesAtFirstStart: on a node that has never run, the plugin closes what policies may concern before subnet.json can be there.
func TestPoliciesAtFirstStart(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(bad, []byte("kind: NetworkPolicy\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		kube  bool
		state mesh.Policies
		saved string
		want  []string // closed
	}{
		"a controller":             {kube: true, state: mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{"shop": "Ingress"}}, want: []string{"shop"}},
		"no controller":            {kube: true, want: []string{"shop", "free"}},
		"rules are saved":          {kube: true, saved: `{"namespaces":{"free":[true,false]}}`, want: []string{"free"}},
		"no file":                  {},
		"a file that is not valid": {state: mesh.Policies{PolicyFile: bad}, want: []string{"shop", "free"}},
	} {
		c := enforce.Config{StateDir: t.TempDir(), RuntimeDir: t.TempDir(), DataDir: t.TempDir(), Kernel: holding{}, Log: slog.New(slog.DiscardHandler)}
		if x.saved != "" {
			if err := os.WriteFile(filepath.Join(c.StateDir, enforce.File), []byte(x.saved), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		k := &kernel{policies: enforce.New(c)}
		with := read.Config{Node: "a", Follow: func(context.Context, api.Kind, func(kube.News)) {}, Has: func(context.Context, api.Kind) bool { return false },
			Local: func() (map[netip.Addr]string, error) { return nil, nil }, InForce: k.policies.Given, Set: k.policies.Set, SetOff: k.policies.SetOff, Log: c.Log}
		k.compiler = read.NewFile(with)
		if x.kube {
			k.compiler = read.New(with)
		}
		s := mesh.State{Policies: x.state}
		k.expectPolicies(s)
		if saved, _ := os.ReadFile(filepath.Join(c.StateDir, enforce.File)); len(x.want) > 0 && !strings.Contains(string(saved), "namespaces") {
			t.Errorf("%s: %q is saved, before the power may fail", name, saved)
		}
		k.setPolicies(s)
		if err := k.policies.Apply(); err != nil {
			t.Fatal(err)
		}
		file, err := conf.LoadPolicies(c.RuntimeDir)
		var got []string
		for _, namespace := range []string{"shop", "free"} {
			if len(file.Closed(namespace)) > 0 {
				got = append(got, namespace)
			}
		}
		if err != nil || !slices.Equal(got, x.want) {
			t.Errorf("%s: closed %v, %v", name, got, err)
		}
	}
}
