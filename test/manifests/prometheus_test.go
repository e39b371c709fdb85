package manifests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"edgemesh/test/fair"
)

// dashboards are those of the chart.
var dashboards = []string{"mesh", "node", "relay"}

// dashboard is one of Grafana's, as far as it is checked.
type dashboard struct {
	UID        string
	Templating struct {
		List []struct{ Name, Definition, Regex string }
	}
	Panels []panel
}

type panel struct {
	Title, Type string
	Targets     []struct{ Expr string }
	FieldConfig struct {
		Defaults struct {
			Unit, NoValue string
			Color         struct{ Mode string }
			Thresholds    *struct {
				Steps []struct {
					Color string
					Value *float64
				}
			}
		}
	}
}

func readDashboard(t *testing.T, name string) (d dashboard) {
	t.Helper()
	if err := json.Unmarshal([]byte(read(t, "manifests/edgemesh/monitoring/"+name+".json")), &d); err != nil || d.UID == "" || len(d.Panels) < 5 {
		t.Fatalf("%s.json: %v, %d panels", name, err, len(d.Panels))
	}
	return d
}

// Panels have a unit, and thresholds on purpose: without them Grafana paints 80 of anything red. Counts of a fleet are judged
// by share. Grafana's schema is build/release's test.
func TestDashboards(t *testing.T) {
	for _, name := range dashboards {
		for _, p := range readDashboard(t, name).Panels {
			d := p.FieldConfig.Defaults
			if len(p.Targets) == 0 || d.Unit == "" {
				t.Errorf("%s.json: %s: no query, or no unit", name, p.Title)
			}
			if p.Type == "stat" && d.Thresholds == nil && d.Color.Mode != "fixed" {
				t.Errorf("%s.json: %s has Grafana's own thresholds", name, p.Title)
			}
			if name == "mesh" && d.Thresholds != nil && d.Unit != "percentunit" && !strings.Contains(p.Title, "Controllers") {
				t.Errorf("%s.json: %s judges a count, not a share", name, p.Title)
			}
		}
	}
}

// The example scrapes as the chart's configuration does.
func TestExampleScrapes(t *testing.T) {
	_, job, _ := strings.Cut(read(t, "manifests/edgemesh/monitoring/prometheus.yaml"), "  - job_name: edgemesh-agent\n")
	job, _, _ = strings.Cut(job, "  - job_name: ")
	for line := range strings.Lines(job) {
		if !strings.Contains(read(t, "manifests/examples/prometheus/prometheus.yaml"), strings.TrimSpace(line)) {
			t.Errorf("manifests/examples/prometheus/prometheus.yaml has not: %s", strings.TrimSpace(line))
		}
	}
}

// Alerts fire when they have to, and only then.
func TestRules(t *testing.T) {
	promtool := tool(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "manifests/edgemesh/monitoring/rules.yaml"}, {"test", "rules", "test/manifests/testdata/rules_test.yaml"}} {
		args[2] = filepath.Join(root, args[2])
		if out, err := command(t, promtool, args...); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

// metricRow is a line of docs/reference/metrics.md, which is made from the programs' code.
var metricRow = regexp.MustCompile("(?m)^\\| `(edgemesh_[a-z0-9_]+)` \\| ([a-z_, ]*) \\|")

// exposition is what programs of a section of docs/reference/metrics.md serve, with every value of a label that queries name.
// Counters and histograms grow with seconds; nothing is found to be wrong.
func exposition(t *testing.T, section string, labels map[string][]string, seconds float64) string {
	t.Helper()
	_, text, there := strings.Cut(read(t, "docs/reference/metrics.md"), "\n## "+section+"\n")
	if !there {
		t.Fatalf("docs/reference/metrics.md has no section %s", section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	var b strings.Builder
	for _, m := range metricRow.FindAllStringSubmatch(text, -1) {
		sets := []string{""}
		for _, label := range strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' || r == ' ' }) {
			var more []string
			for _, set := range sets {
				for _, v := range append(slices.Clone(labels[label]), "other") {
					more = append(more, set+label+"="+strconv.Quote(v)+",")
				}
			}
			sets = more
		}
		for _, set := range sets {
			switch {
			case strings.HasSuffix(m[1], "_seconds") && !strings.Contains(m[1], "timestamp"):
				for _, le := range []string{"0.01", "0.1", "1", "+Inf"} {
					fmt.Fprintf(&b, "%s_bucket{%sle=%q} %v\n", m[1], set, le, seconds)
				}
			case m[1] == "edgemesh_finding": // the series of what is not found is not there
			case strings.Contains(m[1], "surplus"), strings.Contains(set, `lost="true"`), strings.Contains(set, `"none"`), strings.Contains(set, `"used"`):
				fmt.Fprintf(&b, "%s{%s} 0\n", m[1], set)
			case strings.HasSuffix(m[1], "_total"):
				fmt.Fprintf(&b, "%s{%s} %v\n", m[1], set, seconds)
			case m[1] == "edgemesh_pool_size", m[1] == "edgemesh_relay_limit":
				fmt.Fprintf(&b, "%s{%s} 250\n", m[1], set)
			case m[1] == "edgemesh_build_info":
				fmt.Fprintf(&b, "%s{version=\"1\"} 1\n", m[1])
			default:
				fmt.Fprintf(&b, "%s{%s} 1\n", m[1], set)
			}
		}
	}
	fmt.Fprintf(&b, "process_cpu_seconds_total %v\nprocess_resident_memory_bytes 1e8\n", seconds)
	return b.String()
}

// matcherValue is a label's value that a query names.
var matcherValue = regexp.MustCompile(`([a-z_]+)=~?"([a-zA-Z_|]+)"`)

// A real Prometheus scrapes a healthy fleet of 81 agents, as pods and as units, with a relay and a controller, by the configuration
// that the manifests have. Every query of the dashboards works there and has data, without any rules, and no stat is red; with the
// rules, no alert is pending. Panels that a healthy fleet leaves empty say so.
func TestPrometheus(t *testing.T) {
	began := time.Now()
	labels := map[string][]string{}
	for _, name := range dashboards {
		for _, p := range readDashboard(t, name).Panels {
			for _, x := range p.Targets {
				for _, m := range matcherValue.FindAllStringSubmatch(x.Expr, -1) {
					labels[m[1]] = append(labels[m[1]], strings.Split(m[2], "|")...)
				}
			}
		}
	}
	for label, values := range labels {
		slices.Sort(values)
		labels[label] = slices.Compact(values)
	}
	serve := func(section string) (port string) {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(exposition(t, section, labels, time.Since(began).Seconds())))
		}))
		t.Cleanup(s.Close)
		_, port, _ = net.SplitHostPort(s.Listener.Addr().String())
		return port
	}
	agent, relay, controller := serve("Agent"), serve("Relay"), serve("Controller")
	type dict = map[string]any
	dir := t.TempDir()
	write := func(name string, v any) {
		b, ok := v.([]byte)
		if !ok {
			var err error
			if b, err = yaml.Marshal(v); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pod := func(container, component, port, node string) dict {
		return dict{"targets": []string{"127.0.0.1:" + port}, "labels": dict{"instance": container + " at " + node,
			"__meta_kubernetes_pod_label_app_kubernetes_io_name": "edgemesh", "__meta_kubernetes_pod_label_app_kubernetes_io_component": component, "__meta_kubernetes_pod_name": container + node,
			"__meta_kubernetes_pod_container_name": container, "__meta_kubernetes_pod_container_port_name": "metrics", "__meta_kubernetes_pod_ip": "127.0.0.1", "__meta_kubernetes_pod_node_name": node}}
	}
	pods, units := []dict{pod("relay", "relay", relay, "cloud-1"), pod("controller", "controller", controller, "cloud-1"), pod("stranger", "agent", agent, "x")}, []dict{}
	for i := range 80 {
		if node := fmt.Sprintf("edge-%d", i); i < 40 {
			pods = append(pods, pod("agent", "agent", agent, node))
		} else {
			units = append(units, dict{"targets": []string{"127.0.0.1:" + agent}, "labels": dict{"node": node, "instance": "agent at " + node}})
		}
	}
	write("pods.yaml", pods)
	units = append(units, dict{"targets": []string{"127.0.0.1:" + agent}}) // nobody says what it is called
	write("agents.yaml", units)
	write("relays.yaml", []dict{{"targets": []string{"localhost:" + relay}}})
	// Debian's Prometheus cannot read the API: the pods that it would find are in a file.
	config := strings.NewReplacer("kubernetes_sd_configs: [{role: pod, namespaces: {names: [kube-system]}}]", "file_sd_configs: [{files: [pods.yaml]}]",
		"/etc/prometheus/edgemesh/", "", "}:9469", "}:"+agent, "}:9470", "}:"+relay).Replace(read(t, "manifests/edgemesh/monitoring/prometheus.yaml"))
	if strings.Contains(config, "kubernetes_sd") || strings.Count(config, "pods.yaml") != 3 {
		t.Fatalf("this test does not understand prometheus.yaml:\n%s", config)
	}
	write("prometheus.yaml", []byte("global: {scrape_interval: 1s, evaluation_interval: 1s}\n"+config))
	write("rules.yaml", []byte(read(t, "manifests/edgemesh/monitoring/rules.yaml")))
	p := startPrometheus(t, dir)
	wait := func(what, query string, want float64) {
		t.Helper()
		fair.Eventually(t, time.Minute, what, func() error {
			if got := p.query(t, query); len(got) != 1 || slices.Collect(maps.Values(got))[0] != want {
				return fmt.Errorf("%s is %v, want %v", query, got, want)
			}
			return nil
		})
	}
	wait("all agents are scraped, by their names", `count(count by (node, instance) (edgemesh_membership_good{job="edgemesh-agent", instance=~"agent at edge-.+|127.+"}))`, 81)
	wait("and nothing else is", `count(up == 1)`, 84)
	wait("four times", `min(count_over_time(edgemesh_membership_good[1m])) >= bool 4`, 1)

	empty := 0
	for _, name := range dashboards {
		d := readDashboard(t, name)
		for _, v := range d.Templating.List {
			if v.Definition != "" {
				variable(t, p, v.Definition, v.Regex)
			}
		}
		for _, panel := range d.Panels {
			for _, x := range panel.Targets {
				if strings.Contains(x.Expr, "edgemesh:") {
					t.Errorf("%s.json: %s is empty where the rules are off: %s", name, panel.Title, x.Expr)
				}
				got := p.query(t, strings.NewReplacer("$node", "agent at edge-7", "$relay", "localhost:"+relay).Replace(x.Expr))
				if len(got) == 0 {
					if empty++; panel.FieldConfig.Defaults.NoValue == "" {
						t.Errorf("%s.json: %s is empty: %s", name, panel.Title, x.Expr)
					}
				}
				for _, v := range got {
					if c := panel.colour(v); c == "red" || c == "orange" {
						t.Errorf("%s.json: %s is %s: %v: %s", name, panel.Title, c, v, x.Expr)
					}
				}
			}
		}
	}
	if empty > 5 {
		t.Errorf("%d queries have no data", empty)
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError, State string }
		}
	}
	p.get(t, "rules", nil, &rules)
	n := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if n++; r.Health != "ok" || r.State != "inactive" {
				t.Errorf("%+v", r)
			}
		}
	}
	if n < 10 {
		t.Errorf("%d rules", n)
	}
}

// colour is that of a stat's value.
func (p panel) colour(v float64) (c string) {
	if p.Type != "stat" || p.FieldConfig.Defaults.Thresholds == nil {
		return ""
	}
	for _, s := range p.FieldConfig.Defaults.Thresholds.Steps {
		if s.Value == nil || v >= *s.Value {
			c = s.Color
		}
	}
	return c
}

// variable holds that a variable of a dashboard has values: as Grafana takes them from label_values, or from query_result by a
// regular expression, in which an instance without a node's name stands for itself.
func variable(t *testing.T, p prometheus, definition, regex string) {
	t.Helper()
	if m := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(definition); m != nil {
		if len(p.query(t, "count by ("+m[2]+") ("+m[1]+")")) == 0 {
			t.Errorf("no values of %s", definition)
		}
		return
	}
	query, is := strings.CutPrefix(definition, "query_result(")
	pattern, global := strings.CutSuffix(strings.TrimPrefix(regex, "/"), "/g")
	if !is || !global {
		t.Fatalf("this test does not understand %s, %s", definition, regex)
	}
	r, named, bare := regexp.MustCompile(pattern), 0, 0
	for series := range p.query(t, strings.TrimSuffix(query, ")")) {
		groups := map[string]string{}
		for _, m := range r.FindAllStringSubmatch("edgemesh_membership_good{"+series+"} 1 1700000000", -1) {
			for i, name := range r.SubexpNames() {
				groups[name] += m[i]
			}
		}
		switch instance, text := groups["value"], groups["text"]; {
		case instance == "agent at "+text:
			named++
		case strings.HasPrefix(instance, "127.0.0.1:") && text == "":
			bare++
		default:
			t.Errorf("%s: %q", series, groups)
		}
	}
	if named != 80 || bare != 1 {
		t.Errorf("%d nodes by name, %d by address", named, bare)
	}
}

// prometheus is a running one.
type prometheus struct{ base string }

func startPrometheus(t *testing.T, dir string) prometheus {
	t.Helper()
	program := tool(t, "prometheus")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	ctx, stop := context.WithCancel(context.Background())
	c := exec.CommandContext(ctx, program, "--config.file=prometheus.yaml", "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=warn")
	c.Dir, c.Cancel, c.WaitDelay = dir, func() error { return c.Process.Signal(syscall.SIGTERM) }, 10*time.Second
	var log strings.Builder
	c.Stdout, c.Stderr = &log, &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		_ = c.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	p := prometheus{base: "http://" + address}
	fair.Eventually(t, time.Minute, "Prometheus is ready", func() error {
		r, err := http.Get(p.base + "/-/ready")
		if err != nil {
			return err
		}
		if r.Body.Close(); r.StatusCode != http.StatusOK {
			return errors.New(r.Status)
		}
		return nil
	})
	return p
}

func (p prometheus) get(t *testing.T, what string, with url.Values, into any) {
	t.Helper()
	r, err := http.Get(p.base + "/api/v1/" + what + "?" + with.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	if answer.Status != "success" {
		t.Errorf("%s %s: %s", what, with, answer.Error)
		return
	}
	if err := json.Unmarshal(answer.Data, into); err != nil {
		t.Fatal(err)
	}
}

// query is an instant query's values by their labels.
func (p prometheus) query(t *testing.T, q string) map[string]float64 {
	t.Helper()
	var data struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	p.get(t, "query", url.Values{"query": {q}}, &data)
	out := map[string]float64{}
	for _, x := range data.Result {
		text, _ := x.Value[1].(string)
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		delete(x.Metric, "__name__")
		var labels []string
		for _, k := range slices.Sorted(maps.Keys(x.Metric)) {
			labels = append(labels, k+"="+strconv.Quote(x.Metric[k]))
		}
		out[strings.Join(labels, ",")] = v
	}
	return out
}
