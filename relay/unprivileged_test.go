package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"edgemesh/test/fair"
)

// bareRelay is the relay as Kubernetes runs it: another user, no capability, none to be gained, in a network namespace whose
// default is reno. It returns what the relay logs until it is ready; before is put before its command.
func bareRelay(t *testing.T, before ...string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root, to become another user")
	}
	base, err := os.MkdirTemp("", "relay") // t.TempDir is root's alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	copied := func(name string) string { // the test's binary lies where others may not look
		to := filepath.Join(base, name)
		data, err := os.ReadFile(self)
		if err == nil {
			err = os.WriteFile(to, data, 0o755)
		}
		if err == nil {
			err = os.Chmod(to, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		return to
	}
	relay := copied("edgemesh-relay")
	if len(before) > 0 { // a tool of the tests, and its arguments
		tool := filepath.Join(base, "podtool")
		if out, err := exec.Command("go", "build", "-o", tool, "edgemesh/test/cmd/podtool").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		before = append([]string{tool}, before...)
	}
	state, conf := filepath.Join(base, "state"), filepath.Join(base, "relay.yaml")
	if err := own(state, nobody); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(base, "cluster.yaml"), "podCIDRs: [10.244.0.0/16]\n")
	writeFile(t, conf, fmt.Sprintf("stateDir: %s\nmembership: {file: %s/cluster.yaml}\nmetricsAddress: 127.0.0.1:9470\n", state, base))
	for _, f := range []string{conf, filepath.Join(base, "cluster.yaml")} {
		if err := os.Chmod(f, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	command := append([]string{"--net", "sh", "-ec", `ip link set lo up; echo reno >/proc/sys/net/ipv4/tcp_congestion_control; exec setpriv "$@"`, "sh",
		"--reuid", fmt.Sprint(nobody), "--regid", fmt.Sprint(nobody), "--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"},
		append(before, relay, "run", "--config", conf)...)
	c := exec.CommandContext(ctx, "unshare", command...)
	log := &logBuffer{}
	c.Stdout, c.Stderr = &bytes.Buffer{}, log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Wait() }()
	defer cancel()
	fair.Eventually(t, deadline, "the relay is ready", func() error {
		if text := log.String(); !strings.Contains(text, "relay ready") || !strings.Contains(text, "membership applied") {
			return fmt.Errorf("log:\n%s", text)
		}
		return nil
	})
	return log.String()
}

// Without root and without any capability the relay runs; where the node allows BBR, it has it.
func TestUnprivileged(t *testing.T) {
	allowed, err := os.ReadFile("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
	if err != nil || !strings.Contains(string(allowed), "bbr") {
		t.Skip("SKIPPED: this machine does not allow BBR to everybody")
	}
	if log := bareRelay(t); strings.Contains(log, "running degraded: bbr") {
		t.Errorf("BBR is allowed, and not used:\n%s", log)
	}
}

// Where it does not, the relay says what is lost, and how to get it.
func TestUnprivilegedWithoutBBR(t *testing.T) {
	log := bareRelay(t, "without", "congestion")
	for _, want := range []string{"running degraded: bbr", `TCP connections use \"reno\" (bbr: operation not permitted)`, "Mbit/s", "net.ipv4.tcp_allowed_congestion_control"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log does not have %s:\n%s", want, log)
		}
	}
}
