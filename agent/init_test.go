package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"edgemesh/internal/cli"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/file"
)

// command runs the agent's command line and returns its exit code and what it printed.
func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut strings.Builder
	code = cli.Execute(t.Context(), newRoot(), args, &out, &errOut)
	return code, out.String(), errOut.String()
}

// What init writes is a membership of one node, and a configuration of it; a second call changes nothing.
func TestInit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etc")
	state := filepath.Join(t.TempDir(), "state")
	args := []string{"init", "--dir", dir, "--state-dir", state, "--node-name", "shop-7"}
	code, out, errOut := command(t, args...)
	if code != 0 || errOut != "" {
		t.Fatalf("exit %d: %s", code, errOut)
	}
	cfg, err := config.Load(filepath.Join(dir, "agent.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.NodeName != "shop-7" || cfg.StateDir != state || cfg.Membership.File != "/etc/edgemesh/cluster.yaml" {
		t.Errorf("agent.yaml says %+v", cfg)
	}
	members, err := file.Load(filepath.Join(dir, "cluster.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, id, _ := command(t, "id", "--state-dir", state)
	if n, ok := members.Node("shop-7"); !ok || string(n.PeerID) != strings.TrimSpace(id) || len(members.Nodes) != 1 {
		t.Errorf("members %+v, this node is %s", members.Nodes, id)
	}
	if line := "- {name: shop-7, peerID: " + strings.TrimSpace(id) + ", podCIDRs: [10.244.1.0/24]}\n"; !strings.HasSuffix(out, line) {
		t.Errorf("it prints %q, not %q", out, line)
	}

	// Another node, with the first one's cluster.yaml.
	if code, out, errOut := command(t, "init", "--dir", dir, "--state-dir", state, "--node-name", "shop-8"); code != 0 || !strings.Contains(out, "this node is in") {
		t.Errorf("again: exit %d, %q, %q", code, out, errOut) // agent.yaml is kept, and its name
	}
	second := filepath.Join(t.TempDir(), "etc")
	text, err := os.ReadFile(filepath.Join(dir, "cluster.yaml"))
	if err := errors.Join(err, os.MkdirAll(second, 0o755), os.WriteFile(filepath.Join(second, "cluster.yaml"), text, 0o644)); err != nil {
		t.Fatal(err)
	}
	if code, out, errOut := command(t, "init", "--dir", second, "--state-dir", t.TempDir(), "--node-name", "shop-8"); code != 0 || !strings.Contains(out, "{name: shop-8,") || !strings.HasSuffix(out, "[10.244.2.0/24]}\n") {
		t.Errorf("second node: exit %d, %q, %q", code, out, errOut)
	}

	for name, text := range map[string]string{"agent.yaml": "nodeName: other\nstateDir: " + state + "\nmembership: {file: /c.yaml}\n", "cluster.yaml": "# mine\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	code, out, errOut = command(t, args...)
	if code != 0 || strings.Count(out, "kept ") != 2 || !strings.Contains(out, "{name: other,") {
		t.Errorf("over its own files: exit %d, %q, %q", code, out, errOut)
	}
	if text, _ := os.ReadFile(filepath.Join(dir, "cluster.yaml")); string(text) != "# mine\n" {
		t.Errorf("cluster.yaml was overwritten: %s", text)
	}
	for _, bad := range []string{"Shop 7", "-x"} {
		if code, _, errOut := command(t, "init", "--dir", t.TempDir(), "--state-dir", state, "--node-name="+bad); code != cli.ExitUsage || !strings.Contains(errOut, "nodeName") {
			t.Errorf("--node-name %q: exit %d, %q", bad, code, errOut)
		}
	}
}

// TestInitShowsEveryKey: what is commented out is a valid file with the defaults, and no key is missing.
func TestInitShowsEveryKey(t *testing.T) {
	dir := t.TempDir()
	if code, _, errOut := command(t, "init", "--dir", dir, "--state-dir", t.TempDir(), "--node-name", "a"); code != 0 {
		t.Fatal(errOut)
	}
	commented := regexp.MustCompile(`(?m)^# ([a-z][a-zA-Z]*): (.*)$`)
	for name, check := range map[string]func(key, line string) error{
		"agent.yaml": func(key, line string) error {
			if key != "membership" {
				line = "membership: {file: /c.yaml}\n" + line
			}
			if key == "joinSecretFile" || key == "proxyCredentials" {
				return nil // names a file that is read
			}
			_, err := config.Parse("agent.yaml", []byte(line), "a")
			return err
		},
		"cluster.yaml": func(_, line string) error {
			path := filepath.Join(t.TempDir(), "cluster.yaml")
			if err := os.WriteFile(path, []byte("podCIDRs: [10.244.0.0/16]\n"+line), 0o644); err != nil {
				return err
			}
			_, err := file.Load(path)
			return err
		},
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		found := commented.FindAllSubmatch(text, -1)
		if len(found) < 5 {
			t.Errorf("%s shows %d keys", name, len(found))
		}
		for _, m := range found {
			if err := check(string(m[1]), string(m[1])+": "+string(m[2])+"\n"); err != nil {
				t.Errorf("%s: %s: %v", name, m[1], err)
			}
		}
		if name == "agent.yaml" {
			keys, _, _ := strings.Cut(config.Help(), "\n\n")
			for line := range strings.Lines(keys) {
				if m := regexp.MustCompile(`^  ([a-zA-Z]+)  `).FindStringSubmatch(line); m != nil && m[1] != "nodes" && m[1] != "tunQueues" && // of files that many nodes share; without effect
					!regexp.MustCompile(`(?m)^(# )?`+m[1]+`: `).Match(text) {
					t.Errorf("agent.yaml does not show %s", m[1])
				}
			}
		}
	}
}

// TestClusterExamples: cluster.yaml is valid as it is delivered, and once the hash signs before its examples are gone.
func TestClusterExamples(t *testing.T) {
	text, err := os.ReadFile("../manifests/config/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	load := func(text string) int {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		members, err := file.Load(path)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		return len(members.Nodes) + len(members.Relays)
	}
	if n := load(string(text)); n != 0 {
		t.Errorf("%d members and relays as delivered", n)
	}
	examples := strings.ReplaceAll(string(text), "\n#  - ", "\n  - ")
	keys := t.TempDir()
	examples = regexp.MustCompile(`/p2p/12D3KooW…|name: \S+, peerID: 12D3KooW…`).ReplaceAllStringFunc(examples, func(s string) string {
		key, _, _ := strings.Cut(s, ",") // the relay's, or the node's name
		_, id, _ := command(t, "id", "--state-dir", filepath.Join(keys, filepath.Base(key)))
		return strings.Replace(s, "12D3KooW…", strings.TrimSpace(id), 1)
	})
	if n := load(examples); n < 3 {
		t.Errorf("%d members and relays in the examples:\n%s", n, examples)
	}
}
