package manifests

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// operators are the schemas of the Prometheus operator's kinds, as far as the chart uses them.
func operators() map[string]any {
	type dict = map[string]any
	object := func(p dict) dict { return dict{"type": "object", "properties": p, "additionalProperties": false} }
	list := func(of any) dict { return dict{"type": "array", "minItems": 1, "items": of} }
	text, texts := dict{"type": "string"}, dict{"type": "object", "additionalProperties": dict{"type": "string"}}
	whole := func(spec dict) dict {
		return object(dict{"apiVersion": dict{"const": "monitoring.coreos.com/v1"}, "kind": text, "metadata": dict{"type": "object"}, "spec": object(spec)})
	}
	relabeling := object(dict{"action": text, "sourceLabels": list(text), "regex": text, "targetLabel": text, "replacement": text})
	rule := object(dict{"record": text, "alert": text, "expr": text, "for": text, "labels": texts, "annotations": texts})
	return map[string]any{
		"PodMonitor": whole(dict{
			"selector":            dict{"type": "object"},
			"podMetricsEndpoints": list(object(dict{"path": text, "port": text, "interval": text, "relabelings": list(relabeling)})),
		}),
		"PrometheusRule": whole(dict{"groups": list(object(dict{"name": text, "rules": list(rule)}))}),
	}
}

// Prometheus finds each pod where it serves metrics, and nothing pretends to be reachable that is not.
func TestPodMonitors(t *testing.T) {
	all := render(t, variants()["monitored"]...)
	for name, port := range map[string]string{"agent": "9469", "relay": "9479"} {
		o := find(t, all, "PodMonitor", "edgemesh-"+name)
		b, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`"replacement":"${1}:` + port + `"`, `"replacement":"[${1}]:` + port + `"`, `"release":"stack"`, `"regex":"` + name + `"`} {
			if !strings.Contains(string(b), want) {
				t.Errorf("%s: %s is not in %s", name, want, b)
			}
		}
		selected := false
		for _, kind := range []string{"DaemonSet", "Deployment"} {
			if has(all, kind, "edgemesh-"+name) {
				labels, _ := find(t, all, kind, "edgemesh-"+name).at("spec", "template", "metadata", "labels").(map[string]any)
				component, _ := labels["app.kubernetes.io/component"].(string)
				selected = strings.Contains(string(b), `"`+component+`"`) && podOf(t, find(t, all, kind, "edgemesh-"+name)).Containers[0].Name == name
			}
		}
		if !selected {
			t.Errorf("%s: no pods have the labels and the container of %s", name, b)
		}
	}
	if !has(all, "PodMonitor", "edgemesh-controller") || !has(all, "PrometheusRule", "edgemesh") {
		t.Error("no PodMonitor of the controller, or no PrometheusRule")
	}
	ruled := func(o ...string) string {
		b, err := json.Marshal(find(t, render(t, append(variants()["monitored"], o...)...), "PrometheusRule", "edgemesh"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if is := ruled(); !strings.Contains(is, "EdgeMeshNoController") || !strings.Contains(is, "EdgeMeshAgentDown") {
		t.Errorf("rules: %s", is)
	}
	if is := ruled(set("controller.enabled=false")...); strings.Contains(is, "EdgeMeshNoController") || !strings.Contains(is, "EdgeMeshRelayFull") {
		t.Errorf("rules without a controller: %s", is)
	}
	dashboards, _ := find(t, all, "ConfigMap", "edgemesh-dashboards").at("data").(map[string]any)
	for _, name := range []string{"mesh", "node", "relay"} {
		text, _ := dashboards["edgemesh-"+name+".json"].(string)
		if !json.Valid([]byte(text)) {
			t.Errorf("dashboard %s: %q", name, text)
		}
	}
	for _, o := range render(t, must()...) {
		if strings.Contains(o.kind(), "Monitor") || o.kind() == "PrometheusRule" || o.name() == "edgemesh-dashboards" {
			t.Errorf("%s %s comes unasked", o.kind(), o.name())
		}
	}
	for _, address := range []string{"", "127.0.0.1:9469", "[::1]:9469", "localhost:9469"} {
		args := append([]string{"template", "x", chart}, with(set("monitoring.podMonitor=true", "agent.metricsAddress="+address))...)
		if _, err := command(t, tool(t, "helm"), args...); err == nil || !strings.Contains(err.Error(), "needs agent.metricsAddress: mesh:9469") {
			t.Errorf("metricsAddress %q with a PodMonitor: %v", address, err)
		}
	}
}

// rules is the file of rules.
type rules struct {
	Groups []struct {
		Rules []struct {
			Record, Alert, Expr, For string
			Labels, Annotations      map[string]string
		}
	}
}

func readRules(t *testing.T) (r rules) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(read(t, "manifests/edgemesh/monitoring/rules.yaml")), &r); err != nil || len(r.Groups) == 0 {
		t.Fatalf("rules.yaml: %v, %d groups", err, len(r.Groups))
	}
	return r
}

// Each alert says what happened and what to do. TestRules tests when it fires.
func TestAlerts(t *testing.T) {
	alerts := 0
	for _, g := range readRules(t).Groups {
		for _, r := range g.Rules {
			if r.Alert == "" {
				continue
			}
			alerts++
			if !slices.Contains([]string{"info", "warning", "critical"}, r.Labels["severity"]) || r.Annotations["summary"] == "" || len(r.Annotations["description"]) < 60 {
				t.Errorf("%s: %v, %v", r.Alert, r.Labels, r.Annotations)
			}
			if !strings.HasPrefix(r.Alert, "EdgeMesh") || r.Expr == "" {
				t.Errorf("%s: %q", r.Alert, r.Expr)
			}
			if !strings.Contains(read(t, "test/manifests/testdata/rules_test.yaml"), `alertname="`+r.Alert+`"`) {
				t.Errorf("%s: testdata/rules_test.yaml does not test it", r.Alert)
			}
		}
	}
	if alerts < 8 {
		t.Errorf("%d alerts: this test does not understand rules.yaml", alerts)
	}
}

var (
	metricInSource = regexp.MustCompile(`"(edgemesh_[a-z0-9_]+)"|desc\("([a-z0-9_]+)"`)
	metricInQuery  = regexp.MustCompile(`edgemesh[_:][a-z0-9_:]+`)
	labelsInQuery  = regexp.MustCompile(`([a-z_]+)(?:=|!=|=~)"|(?:by|without|ignoring|on) \(([a-z_, ]*)\)`)
	partOfMetric   = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// Every query of rules and dashboards uses metrics and labels that the programs have.
func TestQueriesHaveMetrics(t *testing.T) {
	sources := ""
	for _, dir := range []string{"agent/daemon", "agent/controller", "agent/cnicalls", "internal/endpoint", "relay", "tunnel/p2p/relay/relayservice"} {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if !strings.HasSuffix(f, "_test.go") {
				b, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				sources += string(b)
			}
		}
	}
	there := map[string]bool{}
	for _, m := range metricInSource.FindAllStringSubmatch(sources, -1) {
		if m[1] != "" {
			there[m[1]] = true
		} else {
			there["edgemesh_"+m[2]] = true
		}
	}
	queries := map[string]string{} // where each is
	for _, g := range readRules(t).Groups {
		for _, r := range g.Rules {
			queries[r.Expr] = "rules.yaml"
			if r.Record != "" {
				there[r.Record] = true
			}
		}
	}
	for _, name := range dashboards {
		d := readDashboard(t, name)
		for _, v := range d.Templating.List {
			queries[v.Definition] = name + ".json"
		}
		for _, p := range d.Panels {
			for _, x := range p.Targets {
				queries[x.Expr] = name + ".json"
			}
		}
	}
	queried := 0
	for _, q := range slices.Sorted(maps.Keys(queries)) {
		for _, m := range metricInQuery.FindAllString(q, -1) {
			queried++
			if !there[m] && !there[partOfMetric.ReplaceAllString(m, "")] {
				t.Errorf("%s: no program has %s: %s", queries[q], m, q)
			}
		}
		for _, m := range labelsInQuery.FindAllStringSubmatch(q, -1) {
			for _, label := range strings.FieldsFunc(m[1]+","+m[2], func(r rune) bool { return r == ',' || r == ' ' }) {
				if !slices.Contains([]string{"node", "instance", "job", "le", "version"}, label) && !strings.Contains(sources, `"`+label+`"`) {
					t.Errorf("%s: no metric has the label %s: %s", queries[q], label, q)
				}
			}
		}
	}
	if queried < 50 {
		t.Errorf("%d metrics in queries: this test does not understand them", queried)
	}
}
