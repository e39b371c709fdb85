package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"edgemesh/test/fair"
	"edgemesh/test/kube/cluster"
)

// pod is a running pod with podtool in it.
type pod struct {
	name, node, ip string
}

// pods returns the ready pods with a label, sorted by name.
func pods(ctx context.Context, c *cluster.Cluster, namespace, selector string) ([]pod, error) {
	var list corev1.PodList
	path := "/api/v1/namespaces/" + namespace + "/pods?labelSelector=" + url.QueryEscape(selector)
	if err := c.API().Get(ctx, path, &list); err != nil {
		return nil, err
	}
	var found []pod
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil && ready(p.Status.Conditions) {
			found = append(found, pod{p.Name, p.Spec.NodeName, p.Status.PodIP})
		}
	}
	slices.SortFunc(found, func(a, b pod) int { return cmp.Compare(a.name, b.name) })
	return found, nil
}

func ready(conditions []corev1.PodCondition) bool {
	return slices.ContainsFunc(conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// waitPods waits until there are that many ready pods with a label.
func waitPods(t *testing.T, selector string, count int, within time.Duration) []pod {
	t.Helper()
	c := bare(t)
	var found []pod
	eventually(t, within, func(ctx context.Context) (err error) {
		found, err = pods(ctx, c, "default", selector)
		if err == nil && len(found) != count {
			err = fmt.Errorf("%d of %d pods %s are ready: %v", len(found), count, selector, found)
		}
		return err
	})
	return found
}

// on returns the pod of a node.
func on(t *testing.T, list []pod, node string) pod {
	t.Helper()
	i := slices.IndexFunc(list, func(p pod) bool { return p.node == node })
	if i < 0 {
		t.Fatalf("no pod on %s in %v", node, list)
	}
	return list[i]
}

// answer is what podtool serves.
type answer struct{ Name, Client string }

func decodeAnswer(out string, err error) (answer, error) {
	var a answer
	if err == nil {
		err = json.Unmarshal([]byte(out), &a)
	}
	return a, err
}

// answerTime is how much fair time an answer may take.
const answerTime = 2 * time.Second

// get are podtool's arguments; the context of the call ends it.
func get(target string) []string {
	return []string{"get", "--timeout", (fair.Slowest * answerTime).String(), target}
}

// curl fetches a URL from inside a pod.
func curl(ctx context.Context, c *cluster.Cluster, from pod, target string) (answer, error) {
	ctx, cancel := product.WithTimeout(ctx, answerTime)
	defer cancel()
	a, err := decodeAnswer(c.Exec(ctx, from.node, from.name, get(target)...))
	if err != nil {
		err = fmt.Errorf("%s → %s: %w", from.name, target, err)
	}
	return a, err
}

// curlNode fetches a URL from a node.
func curlNode(ctx context.Context, c *cluster.Cluster, node, target string) (answer, error) {
	ctx, cancel := product.WithTimeout(ctx, answerTime)
	defer cancel()
	a, err := decodeAnswer(c.On(ctx, node, append([]string{c.Tool()}, get(target)...)...))
	if err != nil {
		err = fmt.Errorf("%s → %s: %w", node, target, err)
	}
	return a, err
}

func podURL(ip string) string { return "http://" + net.JoinHostPort(ip, "9376") + "/" }

// reach wants `to` to answer `from`, and to have seen its own address.
func reach(ctx context.Context, c *cluster.Cluster, from, to pod) error {
	a, err := curl(ctx, c, from, podURL(to.ip))
	switch {
	case err != nil:
		return err
	case a.Name != to.name:
		return fmt.Errorf("%s → %s: %q answered", from.name, to.name, a.Name)
	case a.Client != from.ip:
		return fmt.Errorf("%s → %s: the server saw %s, want %s", from.name, to.name, a.Client, from.ip)
	}
	return nil
}

// reachFromNode wants `to` to answer a node, and to have seen an address of the
// cluster's range: the gateway of the node's own block.
func reachFromNode(ctx context.Context, c *cluster.Cluster, node string, to pod) error {
	a, err := curlNode(ctx, c, node, podURL(to.ip))
	switch {
	case err != nil:
		return err
	case a.Name != to.name:
		return fmt.Errorf("%s → %s: %q answered", node, to.name, a.Name)
	case !c.IsPodAddress(a.Client):
		return fmt.Errorf("%s → %s: the server saw %s, which is not of the cluster's range", node, to.name, a.Client)
	}
	return nil
}

// allPairs is reach for all ordered pairs.
func allPairs(ctx context.Context, c *cluster.Cluster, list []pod) error {
	var tasks []func() error
	for _, from := range list {
		for _, to := range list {
			if from != to {
				tasks = append(tasks, func() error { return reach(ctx, c, from, to) })
			}
		}
	}
	return parallel(4, tasks...)
}
