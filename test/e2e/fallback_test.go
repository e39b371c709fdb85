package e2e

import (
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
)

// TestFallbacks holds that an agent on one CPU and without offloads says so, once
// in its log and in status, and works.
func TestFallbacks(t *testing.T) {
	l := newLab(t)
	relay(t, l, "relay")
	whole, lacking := cloud(t, l, "edge-1", lab.NodeOptions{}), cloud(t, l, "edge-2", lab.NodeOptions{})
	startRelays(t, l)
	ok(t, whole.Start())
	ok(t, lacking.WriteConfig())
	var err error
	lacking.Agent, err = lacking.NS.Start(lacking.Name, "env", "-u", "GOMAXPROCS", "taskset", "-c", "0",
		lacking.AgentPath(), "run", "--config", lacking.ConfigFile(), "--portable-tun")
	ok(t, err)
	ready(t, whole, lacking)
	curlPods(t, pod(t, whole, "one"), pod(t, lacking, "two"), 3*time.Second)

	out, _, err := lacking.AgentCommand(t.Context(), "status", "--runtime-dir", lacking.Config.RuntimeDir)
	ok(t, err)
	contains(t, out, "LACKS", "cpus", "one CPU", "offloads", "single packets")
	out, _, err = lacking.AgentCommand(t.Context(), "status", "--json", "--runtime-dir", lacking.Config.RuntimeDir)
	ok(t, err)
	contains(t, out, `"what": "cpus"`, `"what": "offloads"`)
	log := lacking.Agent.Tail(1000)
	for _, what := range []string{"what=cpus", "what=offloads"} {
		if n := strings.Count(log, what); n != 1 {
			t.Errorf("%q is in the log %d times", what, n)
		}
	}
}
