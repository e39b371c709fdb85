package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"edgemesh/test/kube/cluster"
)

// setUnavailable writes a Node's condition as a cloud's route controller does.
func setUnavailable(ctx context.Context, c *cluster.Cluster, node string) error {
	var n corev1.Node
	if err := c.API().Get(ctx, "/api/v1/nodes/"+node, &n); err != nil {
		return err
	}
	conditions := []corev1.NodeCondition{{
		Type:    corev1.NodeNetworkUnavailable,
		Status:  corev1.ConditionTrue,
		Reason:  "NoRouteCreated",
		Message: "e2e",
	}}
	for _, old := range n.Status.Conditions { // a merge patch takes the whole list
		if old.Type != corev1.NodeNetworkUnavailable {
			conditions = append(conditions, old)
		}
	}
	return c.API().Do(ctx, http.MethodPatch, "/api/v1/nodes/"+node+"/status",
		map[string]any{
			"metadata": map[string]any{"resourceVersion": n.ResourceVersion},
			"status":   map[string]any{"conditions": conditions},
		},
		nil)
}

func hasTaint(n corev1.Node) bool {
	for _, taint := range n.Spec.Taints {
		if taint.Key == corev1.TaintNodeNetworkUnavailable && taint.Effect == corev1.TaintEffectNoSchedule {
			return true
		}
	}
	return false
}

// tainted wants a node to have the taint of nodes without a network, or not to.
func tainted(ctx context.Context, c *cluster.Cluster, node string, want bool) error {
	var n corev1.Node
	err := c.API().Get(ctx, "/api/v1/nodes/"+node, &n)
	if err == nil && hasTaint(n) != want {
		err = fmt.Errorf("%s has the taint %s: %v, want %v", node, corev1.TaintNodeNetworkUnavailable, !want, want)
	}
	return err
}

// unavailable is a Node's condition NetworkUnavailable.
func unavailable(ctx context.Context, c *cluster.Cluster, node string) (corev1.NodeCondition, error) {
	var n corev1.Node
	if err := c.API().Get(ctx, "/api/v1/nodes/"+node, &n); err != nil {
		return corev1.NodeCondition{}, err
	}
	for _, cond := range n.Status.Conditions {
		if cond.Type == corev1.NodeNetworkUnavailable {
			return cond, nil
		}
	}
	return corev1.NodeCondition{}, errors.New("no such condition")
}

// late is a pod for edge-a1 that tolerates nothing.
const late = `
apiVersion: v1
kind: Pod
metadata: {name: late, labels: {app: late}}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: edge-a1}
  containers:
  - name: web
    image: e2e.test/podtool:1
    args: [serve, --name, late]
    readinessProbe: {httpGet: {path: /, port: 9376}, periodSeconds: 1}
`

// The Node's condition NetworkUnavailable, and the taint that the cluster makes of it:
// what another program writes does not stay; of a node that cannot serve it is true, and new
// pods wait until it can.
func TestNetworkUnavailable(t *testing.T) {
	c, _ := installed(t)
	const node = "edge-a1"
	web := waitPods(t, "app=web", 4, time.Minute)
	eventually(t, time.Minute, func(ctx context.Context) error { return setUnavailable(ctx, c, node) })
	start := time.Now()
	eventually(t, time.Minute, func(ctx context.Context) error {
		cond, err := unavailable(ctx, c, node)
		if err == nil && (cond.Status != corev1.ConditionFalse || cond.Reason != "EdgeMeshIsUp") {
			err = fmt.Errorf("condition %+v", cond)
		}
		return errors.Join(err, tainted(ctx, c, node, false))
	})
	corrected := time.Since(start)

	// The plugin's records cannot be used: pods that run continue, new ones would fail.
	const records = "/var/lib/cni/networks/edgemesh"
	repair := func(ctx context.Context) error {
		_, err := c.On(ctx, node, "sh", "-c",
			"[ ! -d "+records+".away ] || { rm -f "+records+" && mv "+records+".away "+records+"; }")
		return err
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, err := c.Kubectl(ctx, "delete", "pod", "late", "--ignore-not-found")
		if err := errors.Join(err, repair(ctx)); err != nil {
			t.Error(err)
		}
	})
	_, err := c.On(t.Context(), node, "sh", "-c", "mv "+records+" "+records+".away && touch "+records)
	ok(t, err)
	eventually(t, 90*time.Second, func(ctx context.Context) error {
		cond, err := unavailable(ctx, c, node)
		if err == nil &&
			(cond.Status != corev1.ConditionTrue || cond.Reason != "EdgeMeshIsDown" ||
				!strings.Contains(cond.Message, "address store")) {
			err = fmt.Errorf("condition %+v", cond)
		}
		return errors.Join(err, tainted(ctx, c, node, true))
	})
	kubectlIn(t, late, "apply", "-f", "-")
	eventually(t, time.Minute, func(ctx context.Context) error {
		var p corev1.Pod
		err := c.API().Get(ctx, "/api/v1/namespaces/default/pods/late", &p)
		for _, cond := range p.Status.Conditions {
			if cond.Type == corev1.PodScheduled && cond.Reason == corev1.PodReasonUnschedulable &&
				strings.Contains(cond.Message, "untolerated taint") {
				return err
			}
		}
		return errors.Join(err, fmt.Errorf("the pod does not wait for the node's network: %+v", p.Status.Conditions))
	})
	ok(t, allPairs(t.Context(), c, web))

	ok(t, repair(t.Context()))
	start = time.Now()
	fresh := waitPods(t, "app=late", 1, 90*time.Second)
	served := time.Since(start)
	eventually(t, time.Minute, func(ctx context.Context) error { return tainted(ctx, c, node, false) })
	ok(t, allPairs(t.Context(), c, append(web, fresh...)))
	figure(t,
		"NetworkUnavailable: what a cloud's controller writes is corrected after %s; a node that cannot serve is tainted, its running pods continue, a new one waits and runs %s after the node is repaired",
		seconds(corrected), seconds(served))
}
