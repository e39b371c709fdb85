package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/config"
	"edgemesh/manifests"
	"edgemesh/test/lab"
	"edgemesh/test/repo"
)

// unitCalls returns the names of the calls that the agent's unit allows.
func unitCalls(t *testing.T) []string {
	t.Helper()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("SKIPPED: systemd-analyze is missing, which knows what the unit's filter means")
	}
	filter := regexp.MustCompile(`(?m)^SystemCallFilter=(@.*)$`).FindStringSubmatch(manifests.AgentUnit("/usr/local"))
	if filter == nil {
		t.Fatal("the unit has no SystemCallFilter=")
	}
	var out []string
	seen := map[string]bool{}
	for sets := strings.Fields(filter[1]); len(sets) > 0; sets = sets[1:] {
		if seen[sets[0]] {
			continue
		}
		seen[sets[0]] = true
		if !strings.HasPrefix(sets[0], "@") {
			out = append(out, sets[0])
			continue
		}
		text, err := exec.Command(analyze, "syscall-filter", sets[0]).Output()
		ok(t, err)
		for _, line := range strings.Split(string(text), "\n")[1:] {
			if name := strings.TrimSpace(line); name != "" && !strings.HasPrefix(name, "#") {
				sets = append(sets, name)
			}
		}
	}
	return out
}

// profileCalls returns the names of the calls that the agent's seccomp profile allows; it refuses all others.
func profileCalls(t *testing.T) (out []string) {
	t.Helper()
	root, err := repo.Root()
	ok(t, err)
	data, err := os.ReadFile(filepath.Join(root, "manifests/seccomp/edgemesh-agent.json"))
	ok(t, err)
	var p struct {
		DefaultAction string
		Syscalls      []struct {
			Names  []string
			Action string
			Args   []any
		}
	}
	ok(t, json.Unmarshal(data, &p))
	for _, s := range p.Syscalls {
		if s.Action != "SCMP_ACT_ALLOW" || len(s.Args) > 0 || p.DefaultAction != "SCMP_ACT_ERRNO" {
			t.Fatalf("this test does not understand %+v", s)
		}
		out = append(out, s.Names...)
	}
	return out
}

// numbers returns the numbers of the named calls; those of other architectures have none here.
func numbers(t *testing.T, names []string) string {
	t.Helper()
	// Names are the kernel's, their numbers are in the package of system calls.
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	ok(t, err)
	arch, err := exec.Command("go", "env", "GOARCH").Output()
	ok(t, err)
	source, err := exec.Command("cat", filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+strings.TrimSpace(string(arch))+".go")).Output()
	ok(t, err)
	number := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\s+SYS_(\w+)\s+= (\d+)`).FindAllStringSubmatch(string(source), -1) {
		number[strings.ToLower(m[1])] = m[2]
	}
	var out []string
	for _, name := range names {
		if n := number[name]; n != "" {
			out = append(out, n)
		}
	}
	if len(out) < 200 {
		t.Fatalf("only %d system calls", len(out))
	}
	return strings.Join(out, ",")
}

// unitWrites returns where the unit lets n's agent write; its ExecStartPre= makes them.
func unitWrites(t *testing.T, n *lab.Node) []string {
	t.Helper()
	ok(t, n.WriteConfig())
	cfg, err := config.Load(n.ConfigFile())
	ok(t, err)
	unit := manifests.AgentUnit("/usr/local", cfg.Writes()...)
	line := regexp.MustCompile(`(?m)^ReadWritePaths=(.*)$`).FindStringSubmatch(unit)
	if line == nil || !strings.Contains(unit, "\nProtectSystem=strict\n") {
		t.Fatal("the unit lets the agent write anywhere")
	}
	paths := strings.Fields(line[1])
	for _, p := range paths {
		if p == "/run/xtables.lock" {
			f, err := os.OpenFile(p, os.O_CREATE, 0o600)
			ok(t, err)
			f.Close()
			continue
		}
		ok(t, os.MkdirAll(p, 0o755))
	}
	return paths
}

// confined starts n's agent with these capabilities, system calls and writable paths only, as unit and DaemonSet do.
func confined(t *testing.T, n *lab.Node, capabilities []string, calls string, writes []string) {
	t.Helper()
	bounding := "-all"
	for _, c := range capabilities {
		bounding += ",+" + strings.ToLower(c)
	}
	var err error
	n.Agent, err = n.NS.Start(n.Name, n.ToolPath(), "readonly", "--except", strings.Join(writes, ","), "setpriv", "--bounding-set="+bounding, "--inh-caps=-all", "--no-new-privs",
		n.ToolPath(), "confine", "--syscalls", calls, n.AgentPath(), "run", "--config", n.ConfigFile())
	ok(t, err)
}

// TestLeastRights runs agents with the capabilities of the DaemonSet, the directories of the unit, and the system calls of
// the unit or of the seccomp profile, no more: over punched, native and VXLAN paths, with their firewall. The control is an
// agent without NET_ADMIN, without most system calls, or without its state directory, which does not run.
func TestLeastRights(t *testing.T) {
	beside(t)
	t.Run("unit", func(t *testing.T) { leastRights(t, numbers(t, unitCalls(t))) })
	t.Run("profile", func(t *testing.T) { leastRights(t, numbers(t, profileCalls(t))) })
}

func leastRights(t *testing.T, calls string) {
	unit := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`).FindStringSubmatch(manifests.AgentUnit("/usr/local"))
	if unit == nil {
		t.Fatal("the unit keeps all capabilities")
	}
	var caps []string
	for _, c := range strings.Fields(unit[1]) {
		caps = append(caps, strings.TrimPrefix(c, "CAP_"))
	}
	if slices.Sort(caps); !slices.Equal(caps, []string{"NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW"}) {
		t.Errorf("the unit's capabilities are %v", caps)
	}
	caps = []string{"NET_ADMIN", "NET_RAW"} // the DaemonSet's
	l := newLab(t)
	relay(t, l, "relay")
	home := site(t, l, "site-1", lab.EIM)
	a, b, far := node(t, home, "edge-1", lab.NodeOptions{}), node(t, home, "edge-2", lab.NodeOptions{}), at(t, l, "edge-3", lab.EIM)
	startRelays(t, l)
	for _, n := range []*lab.Node{a, b, far} {
		confined(t, n, caps, calls, unitWrites(t, n))
	}
	ready(t, a, b, far)
	one, two, three := pod(t, a, "one"), pod(t, b, "two"), pod(t, far, "three")
	curlPods(t, one, two, 5*time.Second)
	curlPods(t, one, three, 5*time.Second)
	_, err := a.WaitPath(within(t, 20*time.Second), b, "native", "vxlan")
	ok(t, err)
	_, err = a.WaitPath(within(t, 20*time.Second), far, "punched")
	ok(t, err)
	curlPods(t, three, two, 5*time.Second)
	for _, n := range []*lab.Node{a, far} {
		if out, _, err := n.AgentCommand(t.Context(), "doctor", "--runtime-dir", n.Config.RuntimeDir); err != nil {
			t.Errorf("%s: doctor: %v\n%s", n.Name, err, out)
		}
	}
	ok(t, far.Agent.Stop())
	writes := unitWrites(t, far)
	confined(t, far, []string{"NET_RAW"}, calls, writes)
	ends(t, far)
	confined(t, far, caps, strings.Join(strings.Split(calls, ",")[:20], ","), writes)
	ends(t, far)
	confined(t, far, caps, calls, writes[1:]) // all but stateDir
	ends(t, far)
	if tail := fmt.Sprint(far.Agent.Tail(5)); !strings.Contains(tail, "stateDir") {
		t.Errorf("without stateDir it says %s", tail)
	}
}

// ends waits for the end of an agent that cannot run.
func ends(t *testing.T, far *lab.Node) {
	t.Helper()
	ok(t, lab.Until(within(t, 15*time.Second), 50*time.Millisecond, func() error {
		if far.Agent.Running() {
			return fmt.Errorf("an agent without the rights that it needs runs:\n%s", far.Agent.Tail(5))
		}
		return nil
	}))
}
