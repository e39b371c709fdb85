package manifests

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"edgemesh/agent/fleet"
)

// kubernetes is the release whose schemas we validate against, and whose API
// server server_test.go runs.
const kubernetes = "v1.35.4"

// kubeconform validates what is rendered, strictly: a field that does not exist is
// an error. It would fetch its schemas from the net; these are made from the
// OpenAPI document in the Kubernetes module and from our own CRDs.
func TestKubeconform(t *testing.T) {
	t.Parallel()
	dir := schemas(t)
	// check validates files in one run: most of it is reading the schemas.
	check := func(files []string) (said string, err error) {
		return command(t, tool(t, "kubeconform"), append([]string{
			"-strict", "-summary", "-schema-location", dir + "/{{.ResourceKind}}.json",
		}, files...)...)
	}
	good, err := filepath.Glob(chart + "/crds/*.yaml")
	if err != nil || len(good) != 5 {
		t.Fatalf("CRDs: %v, %v", good, err)
	}
	for _, name := range []string{
		"edgemesh.yaml", "edgemesh-relay.yaml", "podnetwork.yaml", "static-pod/edgemesh-agent.yaml",
		"examples/prometheus/prometheus.yaml", "examples/mqtt/mqtt.yaml",
	} {
		good = append(good, filepath.Join(root, "manifests", name))
	}
	// The pods of a connectivity test.
	for _, o := range slices.Concat(fleet.Namespace(), fleet.Server(1, "edge-1", "localhost/edgemesh-agent:1"),
		fleet.Client(1, "edge-1", "localhost/edgemesh-agent:1", []string{"ip/a=http://10.244.1.2:8080/"})) {
		b, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		good = append(good, file(t, string(b)))
	}
	for name, values := range variants() {
		made := filepath.Join(t.TempDir(), name+".yaml")
		if err := os.WriteFile(made, []byte(template(t, values...)), 0o600); err != nil {
			t.Fatal(err)
		}
		good = append(good, made)
	}
	said, err := check(good)
	if summary := fmt.Sprintf("found in %d files", len(good)); err != nil || !strings.Contains(said, summary) {
		t.Errorf("want what is %s valid: %v\n%s", summary, err, said)
	}
	// The check can fail: it knows our fields, and those of Kubernetes.
	bad := map[string]string{}
	for was, is := range map[string]string{
		"hostNetwork:": "hostNetwrok:",
		"podCIDRs:":    "podCIDR:",
		"maxSurge: 1":  "maxSurge: [1]",
	} {
		text := read(t, "manifests/edgemesh.yaml") + "\n---\n" + read(t, "manifests/podnetwork.yaml")
		i := strings.LastIndex(text, was)
		if i < 0 {
			t.Fatalf("no %s to break", was)
		}
		bad[is] = file(t, text[:i]+is+text[i+len(was):])
	}
	said, err = check(slices.Collect(maps.Values(bad)))
	for is, file := range bad {
		if err == nil || !strings.Contains(said, file+" - ") {
			t.Errorf("%s is accepted: %v\n%s", is, err, said)
		}
	}
}

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "x.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// schemas writes one JSON schema per kind, named by the kind in lower case.
func schemas(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	out := func(kind string, v any) {
		t.Helper()
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, strings.ToLower(kind)+".json"), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command("go", "mod", "download", "-json", "k8s.io/kubernetes@"+kubernetes)
	c.Dir = os.TempDir() // no module of ours
	c.Stderr = os.Stderr
	got, err := c.Output()
	if err != nil {
		t.Fatalf("the module k8s.io/kubernetes: %v", err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(got, &module); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(module.Dir, "api/openapi-spec/swagger.json"))
	if err != nil {
		t.Fatal(err)
	}
	var openAPI struct{ Definitions map[string]map[string]any }
	if err := json.Unmarshal(data, &openAPI); err != nil {
		t.Fatal(err)
	}
	for _, d := range openAPI.Definitions {
		switch {
		case d["format"] == "int-or-string":
			d["type"] = []string{"integer", "string"}
			delete(d, "format")
		case d["type"] == "object":
			closed(d)
		}
	}
	openAPI.Definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"]["type"] = []string{"string", "number"}
	for name, d := range openAPI.Definitions {
		kinds, _ := d["x-kubernetes-group-version-kind"].([]any)
		if len(kinds) != 1 {
			continue
		}
		gvk := kinds[0].(map[string]any)
		if slices.Contains([]any{"v1"}, gvk["version"]) && used(gvk["kind"].(string)) {
			out(gvk["kind"].(string),
				map[string]any{"$ref": "#/definitions/" + name, "definitions": openAPI.Definitions})
		}
	}
	for kind, schema := range operators() {
		out(kind, schema)
	}
	crds, err := filepath.Glob(chart + "/crds/*.yaml")
	if err != nil || len(crds) != 5 {
		t.Fatalf("CRDs: %v, %v", crds, err)
	}
	for _, f := range crds {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		crd := parse(t, string(data))[0]
		for _, v := range crd.at("spec", "versions").([]any) {
			schema := v.(map[string]any)["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)
			deep(schema)
			out(crd.at("spec", "names", "kind").(string), schema)
		}
	}
	return dir
}

// used are the kinds of ours; a schema of each is some megabytes.
func used(kind string) bool {
	return slices.Contains([]string{
		"ClusterRole", "ClusterRoleBinding", "ConfigMap", "CustomResourceDefinition", "DaemonSet", "Deployment",
		"Namespace", "NetworkPolicy", "Pod", "Role", "RoleBinding", "Service", "ServiceAccount", "ValidatingAdmissionPolicy",
		"ValidatingAdmissionPolicyBinding",
	}, kind)
}

// closed makes fields that a schema does not name an error.
func closed(d map[string]any) {
	if d["properties"] != nil && d["additionalProperties"] == nil && d["x-kubernetes-preserve-unknown-fields"] == nil {
		d["additionalProperties"] = false
	}
}

// deep closes a CRD's schema at every level, except for metadata.
func deep(d map[string]any) {
	closed(d)
	properties, _ := d["properties"].(map[string]any)
	for _, p := range properties {
		if m, ok := p.(map[string]any); ok {
			deep(m)
		}
	}
	if items, ok := d["items"].(map[string]any); ok {
		deep(items)
	}
}
