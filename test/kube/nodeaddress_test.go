package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"edgemesh/test/kube/cluster"
)

// kubelet's --node-ip names an address that the host does not have, so that the Node has none. Doctor says so first, status
// does, and what doctor says to do gives the Node its mesh address.
func TestFaultNodeAddress(t *testing.T) {
	c, _ := installed(t)
	const node, conf = "edge-b1", "/etc/systemd/system/kubelet.service.d/80-operator.conf"
	mesh := meshIP(t, c, node)
	if f, found := doctorFirst(t, c, node); found {
		t.Fatalf("before: %+v", f)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, err := c.On(ctx, node, "rm", "-f", conf)
		_, back := c.On(ctx, node, agentBinary(t), "install", "--form", "daemonset", "--node-ip")
		if err := errors.Join(err, back, c.Service(ctx, "restart", node, "kubelet")); err != nil {
			t.Error(err)
		}
	})
	setNodeIP(t, c, node, "off")
	_, err := c.On(t.Context(), node, "sh", "-ec", "mkdir -p $(dirname "+conf+"); { echo '[Service]'; echo 'ExecStart='; sed -n 's/^ExecStart=..*/& --node-ip 203.0.113.9/p' "+
		"/etc/systemd/system/kubelet.service; } > "+conf)
	ok(t, err)
	ok(t, c.Service(t.Context(), "stop", node, "kubelet"))
	kubectl(t, "patch", "node", node, "--subresource=status", "--type=merge", "-p", `{"status":{"addresses":[]}}`) // as one that registers so
	ok(t, c.Service(t.Context(), "start", node, "kubelet"))
	eventually(t, 2*time.Minute, func(ctx context.Context) error { // started by the node's init, later
		_, err := c.On(ctx, node, "sh", "-c", "kill -0 $(cat /run/svc/kubelet.pid)")
		return err
	})
	eventually(t, 2*time.Minute, func(context.Context) error {
		f, _ := doctorFirst(t, c, node)
		if f.Check != "node-ip" || f.Remedy == "" {
			return fmt.Errorf("doctor says first: %+v", f)
		}
		return nil
	})
	if out, err := c.On(t.Context(), node, agentBinary(t), "status"); err != nil || !strings.Contains(out, "kubelet reports no address") {
		t.Errorf("status: %v\n%s", err, out)
	}
	f, _ := doctorFirst(t, c, node)
	t.Logf("doctor: %s: %s → %s", f.Check, f.Detail, f.Remedy)
	start := time.Now()
	setNodeIP(t, c, node, "on")
	eventually(t, 2*time.Minute, func(ctx context.Context) error {
		if ip, err := internalIP(ctx, c, node); err != nil || ip != mesh {
			return errors.Join(err, fmt.Errorf("InternalIP is %q, want %s", ip, mesh))
		}
		if f, found := doctorFirst(t, c, node); found {
			return fmt.Errorf("doctor, after its remedy: %+v", f)
		}
		return nil
	})
	figure(t, "a Node without an address: doctor names it first, and its remedy gives it one after %s", seconds(time.Since(start)))
}

// doctorFinding is one of doctor's findings.
type doctorFinding struct{ Check, Severity, Detail, Remedy string }

// doctorFirst is what doctor on a node says first, unless all is well.
func doctorFirst(t *testing.T, c *cluster.Cluster, node string) (f doctorFinding, found bool) {
	t.Helper()
	out, err := c.On(t.Context(), node, "sh", "-c", agentBinary(t)+" doctor --json || true")
	var all []doctorFinding
	if err == nil {
		err = json.Unmarshal([]byte(out), &all)
	}
	ok(t, err)
	for _, severity := range []string{"broken", "warning"} {
		for _, f := range all {
			if f.Severity == severity {
				return f, true
			}
		}
	}
	return doctorFinding{}, false
}
