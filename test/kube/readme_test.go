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
case $1 in start | restart) setsid /usr/local/bin/edgemesh-relay run --config /etc/edgemesh/relay.yaml >"$RELAY_LOG" 2>&1 & echo $! >"$RELAY_LOG.pid" ;; esac
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
	plugins := t.TempDir()
	bin, err := filepath.Abs(filepath.Join(root, "bin"))
	ok(t, err)
	ok(t, os.Symlink(filepath.Join(bin, "edgemesh-agent"), filepath.Join(plugins, fleet.Name)))
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
	install := strings.Fields(regexp.MustCompile(`edgemesh-relay install --signer \S+`).FindString(paste(filepath.Join(plugins, fleet.Name), "relay", "add")))

	lines++
	log := filepath.Join(c.Dir, "relay.log")
	cmd := c.InRelay(t.Context(), append([]string{"unshare", "--mount", "sh", "-c", server, "sh", filepath.Join(bin, "edgemesh-relay")}, install[1:]...)...)
	cmd.Env = append(os.Environ(), "RELAY_LOG="+log)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", install, err, out)
	}
	t.Cleanup(func() {
		text, err := os.ReadFile(log + ".pid")
		ok(t, err)
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		ok(t, err)
		ok(t, syscall.Kill(pid, syscall.SIGTERM))
	})
	add := strings.Fields(regexp.MustCompile(`kubectl edgemesh relay add .+`).FindString(string(out)))
	if len(add) < 5 {
		t.Fatalf("no line for the cluster in\n%s", out)
	}
	paste(filepath.Join(plugins, fleet.Name), add[2:]...)
	pasted := time.Since(start)

	web := waitPods(t, "app=web", 4, 2*time.Minute)
	eventually(t, 2*time.Minute, func(ctx context.Context) error { return allPairs(ctx, c, web) })
	took := time.Since(start)
	if lines > 5 || took > 5*time.Minute {
		t.Errorf("%d lines, %v", lines, took)
	}
	figure(t, "by the README alone, from a bare server to curl between all sites: %d pasted lines, the last one after %s, curl after %s", lines, seconds(pasted), seconds(took))
}
