package kube

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"edgemesh/agent/fleet"
	"edgemesh/test/kube/cluster"
)

// server has the relay's host look bare: nothing of this machine's is written, and what stands for systemctl starts the unit's program.
const server = `set -e
for d in /etc /var/lib /run /usr/local/bin; do mount -t tmpfs tmpfs $d; done
mkdir -p /run/systemd/system /run/bin
cat >/run/bin/systemctl <<'U'
#!/bin/sh
case $1 in start | restart)
  cat /etc/systemd/system/edgemesh-relay.service.d/*.conf 2>/dev/null | sed -n 's/^LoadCredential=\([^:]*\):/\1 /p' | while read -r name file; do
    install -D -m 400 "$file" "/run/credentials/edgemesh-relay.service/$name"
  done
  setsid /usr/local/bin/edgemesh-relay run --config /etc/edgemesh/relay.yaml >"$RELAY_LOG" 2>&1 & echo $! >"$RELAY_LOG.pid" ;;
esac
U
chmod +x /run/bin/systemctl
PATH=/run/bin:$PATH exec "$@"`

// The README's lines from a cluster without a pod network and a bare server to a curl between two sites: no secret is carried to the
// server, and no file is written by hand.
func TestByTheReadme(t *testing.T) {
	c := bare(t)
	if flavour() != "" || suite.installed != nil || attached(t, c) {
		t.Skip("on a cluster of its own: go test -run TestByTheReadme ./test/kube")
	}
	suite.installed = &installation{}
	applyWorkload(t, c)
	plugin := kubectlPlugin(t)
	lines := 1 // make build images
	start := time.Now()
	paste := func(name string, args ...string) (out string) {
		t.Helper()
		lines++
		eventually(t, 2*time.Minute, func(ctx context.Context) error {
			text, err := c.AdminCommand(ctx, name, args...).CombinedOutput()
			if out = string(text); err != nil {
				return fmt.Errorf("%v: %w\n%s", args, err, out)
			}
			return nil
		})
		return out
	}
	paste(filepath.Join(root, "manifests/first-steps.sh"), append(trust(t.Context(), c), "--pod-cidr", "10.244.0.0/16", "--api-server", cluster.APIServer+":"+cluster.APIPort)...)
	install := strings.Fields(regexp.MustCompile(`edgemesh-relay install --signer \S+`).FindString(paste(plugin, "relay", "add")))

	lines++
	out := relayByInstall(t, c, install[1:]...)
	add := strings.Fields(regexp.MustCompile(`kubectl edgemesh relay add .+`).FindString(out))
	if len(add) < 5 {
		t.Fatalf("no line for the cluster in\n%s", out)
	}
	paste(plugin, add[2:]...)
	pasted := time.Since(start)

	web := waitPods(t, "app=web", 4, 2*time.Minute)
	eventually(t, 2*time.Minute, func(ctx context.Context) error { return allPairs(ctx, c, web) })
	took := time.Since(start)
	if lines > 5 || took > 5*time.Minute {
		t.Errorf("%d lines, %v", lines, took)
	}
	figure(t, "by the README alone, from a bare server to curl between all sites: %d pasted lines, the last one after %s, curl after %s", lines, seconds(pasted), seconds(took))
}

// kubectlPlugin is the path of kubectl's plugin.
func kubectlPlugin(t *testing.T) string {
	t.Helper()
	agent, err := filepath.Abs(filepath.Join(root, "bin/edgemesh-agent"))
	ok(t, err)
	plugin := filepath.Join(t.TempDir(), fleet.Name)
	ok(t, os.Symlink(agent, plugin))
	return plugin
}

// relayByInstall runs `edgemesh-relay` with these arguments, which begin with install, on the relay's host, and returns what it prints.
func relayByInstall(t *testing.T, c *cluster.Cluster, args ...string) string {
	t.Helper()
	program, err := filepath.Abs(filepath.Join(root, "bin/edgemesh-relay"))
	ok(t, err)
	log := filepath.Join(c.Dir, "relay.log")
	cmd := c.InRelay(t.Context(), append([]string{"unshare", "--mount", "sh", "-c", server, "sh", program}, args...)...)
	cmd.Env = append(os.Environ(), "RELAY_LOG="+log)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	t.Cleanup(func() {
		if os.Getenv("KEEP") != "" {
			return // the end of the cluster ends it
		}
		text, err := os.ReadFile(log + ".pid")
		ok(t, err)
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		ok(t, err)
		ok(t, syscall.Kill(pid, syscall.SIGTERM))
	})
	return string(out)
}
