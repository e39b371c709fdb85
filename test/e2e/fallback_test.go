package e2e

import (
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
)

// TestFallbacks holds that an agent on one CPU, without offloads, and which may set
// neither the congestion control nor large UDP buffers, says so, once in its log and in
// status, and works.
func TestFallbacks(t *testing.T) {
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	whole, lacking := cloud(t, l, "edge-1", lab.NodeOptions{}), cloud(t, l, "edge-2", lab.NodeOptions{})
	startRelays(t, l)
	ok(t, whole.Start())
	ok(t, lacking.WriteConfig())
	ok(t, lacking.Script("sysctl -qw net.ipv4.tcp_congestion_control=reno")) // what sockets have by themselves
	var err error
	lacking.Agent, err = lacking.NS.Start(lacking.Name, "env", "-u", "GOMAXPROCS", "taskset", "-c", "0",
		lacking.ToolPath(), "without", "congestion,udp-buffers", lacking.AgentPath(), "run", "--config",
		lacking.ConfigFile(), "--portable-tun")
	ok(t, err)
	ready(t, whole, lacking)
	curlPods(t, pod(t, whole, "one"), pod(t, lacking, "two"), 3*time.Second)

	out, _, err := lacking.AgentCommand(t.Context(), "status", "--runtime-dir", lacking.Config.RuntimeDir)
	ok(t, err)
	contains(t, out, "DEGRADED", "cpus", "one CPU", "offloads", "single packets",
		"bbr", `use "reno" (bbr: operation not permitted)`, "udp-buffers", "bursts are lost")
	out, _, err = lacking.AgentCommand(t.Context(), "status", "--json", "--runtime-dir", lacking.Config.RuntimeDir)
	ok(t, err)
	contains(t, out, `"what": "cpus"`, `"what": "offloads"`, `"what": "bbr"`, `"what": "udp-buffers"`)
	log := lacking.Agent.Tail(1000)
	for _, what := range []string{"cpus", "offloads", "bbr", "udp-buffers"} {
		message := "running degraded: " + what
		if n := strings.Count(log, message); n != 1 {
			t.Errorf("%q is in the log %d times", message, n)
		}
	}
}
