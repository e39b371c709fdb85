package kube

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
	"edgemesh/test/tier"
)

// kubelets are nodes that are only objects, on which pods run that are only objects. The real controller-manager's DaemonSet
// controller looks after them; there is no scheduler, so the nodes take the pods that are meant for them.
type kubelets struct {
	*kubeapi.Cluster
	dark map[string]bool // without power: what is there stays, as not ready
}

const daemonsets = "/apis/apps/v1/namespaces/kube-system/daemonsets/"

// TestRolloutWithDarkNodes decides the chart's update strategy: with 10 of 200 nodes without power the other 190 are
// upgraded. With maxSurge 1 it stops soon: the new pods on dark nodes use the surge up.
func TestRolloutWithDarkNodes(t *testing.T) {
	tier.Long(t)
	api, err := kubeapi.New(t.TempDir())
	t.Cleanup(api.Stop)
	ok(t, err)
	ok(t, api.StartControllers("daemonset-controller"))
	k := kubelets{api, map[string]bool{}}
	const all, off = 200, 10
	for i := range all {
		name := fmt.Sprintf("node-%03d", i)
		ok(t, k.CreateNode(name))
		ok(t, k.Patch("/api/v1/nodes/"+name, map[string]any{"metadata": map[string]any{"labels": map[string]any{"kubernetes.io/os": "linux"}}}))
	}
	ds := k.daemonSet(t)
	want := ds.Spec.UpdateStrategy.RollingUpdate.MaxSurge
	k.strategy(t, 1)
	k.until(t, "all nodes have a ready pod", func(int, int, map[string]bool) bool { // one that is not ready is exchanged whatever the surge
		up := 0
		for _, p := range k.pods(t) {
			if p.DeletionTimestamp == nil && ready(p.Status.Conditions) {
				up++
			}
		}
		return up == all
	})
	for i := range off {
		k.dark[fmt.Sprintf("node-%03d", i*all/off)] = true
	}
	k.lights(t, false)
	_, err = k.Kubectl("-n", "kube-system", "set", "image", "daemonset/edgemesh-agent", "agent=next")
	ok(t, err)
	k.until(t, "the dark nodes have a second pod", func(_, _ int, dark map[string]bool) bool { return len(dark) == off })
	k.synced(t)
	_, few, _ := k.count(t) // those that were begun before the dark nodes had their second pods
	if few > all/4 {
		t.Errorf("with maxSurge 1 and %d dark nodes %d are upgraded: the surge is not used up, so the chart's value can be smaller", off, few)
	}
	began := time.Now()
	ok(t, k.Patch(daemonsets+"edgemesh-agent", map[string]any{"spec": map[string]any{"updateStrategy": map[string]any{"rollingUpdate": map[string]any{"maxSurge": want}}}}))
	k.until(t, "all nodes with power are upgraded", func(_, lit int, _ map[string]bool) bool { return lit == all-off })
	took := time.Since(began)
	k.lights(t, true)
	k.until(t, "the dark ones follow when they are back", func(old, lit int, dark map[string]bool) bool { return old == 0 && lit+len(dark) == all })
	figure(t, "rollout with %d of %d nodes off: %d with maxSurge 1, %d with the chart's %s (%s, the controller-manager's own pace); the others when they are back",
		off, all, few, all-off, want, seconds(took))
}

// daemonSet makes the chart's DaemonSet, as the plain manifests have it.
func (k kubelets) daemonSet(t *testing.T) appsv1.DaemonSet {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "manifests/edgemesh.yaml"))
	ok(t, err)
	for _, doc := range strings.Split(string(text), "\n---\n") {
		if !strings.Contains(doc, "\nkind: DaemonSet\n") || !strings.Contains(doc, "\n  name: edgemesh-agent\n") {
			continue
		}
		_, err = k.KubectlStdin("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: edgemesh-agent, namespace: kube-system}\n---\n"+doc, "apply", "-f", "-")
		ok(t, err)
		// Standing by for a while is for real agents.
		ok(t, k.Patch(daemonsets+"edgemesh-agent", map[string]any{"spec": map[string]any{"minReadySeconds": 0}}))
		var ds appsv1.DaemonSet
		ok(t, k.Do(http.MethodGet, daemonsets+"edgemesh-agent", nil, &ds))
		return ds
	}
	t.Fatal("no DaemonSet in edgemesh.yaml")
	return appsv1.DaemonSet{}
}

func (k kubelets) strategy(t *testing.T, surge int) {
	t.Helper()
	ok(t, k.Patch(daemonsets+"edgemesh-agent", map[string]any{"spec": map[string]any{"updateStrategy": map[string]any{"rollingUpdate": map[string]any{"maxSurge": surge}}}}))
}

// lights switches the dark nodes off or on.
func (k kubelets) lights(t *testing.T, on bool) {
	t.Helper()
	for name := range k.dark {
		if on {
			delete(k.dark, name)
		}
		status := map[bool]string{true: "True", false: "Unknown"}[on]
		ok(t, k.Patch("/api/v1/nodes/"+name+"/status", map[string]any{"status": map[string]any{"conditions": []any{
			map[string]any{"type": "Ready", "status": status, "lastTransitionTime": metav1.Now()},
		}}}))
		for _, p := range k.pods(t) {
			if p.Spec.NodeName == name && !on { // what the node lifecycle controller does
				ok(t, k.ready(p.Name, false))
			}
		}
	}
}

func (k kubelets) pods(t *testing.T) []corev1.Pod {
	t.Helper()
	var list corev1.PodList
	ok(t, k.Do(http.MethodGet, "/api/v1/namespaces/kube-system/pods?resourceVersion=0", nil, &list))
	return list.Items
}

func (k kubelets) ready(pod string, yes bool) error {
	status := map[bool]string{true: "True", false: "False"}[yes]
	return k.Patch("/api/v1/namespaces/kube-system/pods/"+pod+"/status", map[string]any{"status": map[string]any{"phase": "Running", "conditions": []any{
		map[string]any{"type": "Ready", "status": status, "lastTransitionTime": metav1.Now()},
	}}})
}

// tick does what scheduler and kubelets do: pods get their node; on a node with power they become ready, and end if told to.
// Those that are broken crash once the former one has gone; those that stand by end if their revision fails.
func (k kubelets) tick(t *testing.T) {
	t.Helper()
	pods, failing, on := k.pods(t), k.failing(t), map[string]int{}
	for _, p := range pods {
		on[p.Spec.NodeName]++
	}
	for _, p := range pods {
		node := p.Spec.NodeName
		switch alone := on[node] == 1; {
		case node != "" && p.DeletionTimestamp == nil && alone && p.Spec.Containers[0].Image == broken:
			if ready(p.Status.Conditions) {
				ok(t, gone404(k.ready(p.Name, false)))
			}
			ok(t, gone404(k.crash(p)))
		case node != "" && p.DeletionTimestamp == nil && !alone && failing[p.Labels[api.RevisionLabel]]:
			if ready(p.Status.Conditions) {
				ok(t, gone404(k.ready(p.Name, false)))
			}
		case node == "":
			node = p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
			err := k.Do(http.MethodPost, "/api/v1/namespaces/kube-system/pods/"+p.Name+"/binding", map[string]any{
				"apiVersion": "v1", "kind": "Binding", "metadata": map[string]any{"name": p.Name}, "target": map[string]any{"kind": "Node", "name": node},
			}, nil)
			if err != nil && (strings.Contains(err.Error(), ": 409: ") || strings.Contains(err.Error(), ": 404: ")) {
				continue // it is being deleted, or gone, since it was listed
			}
			ok(t, err)
			fallthrough
		case p.DeletionTimestamp == nil && !ready(p.Status.Conditions) && !k.dark[node]:
			if !k.dark[node] {
				ok(t, gone404(k.ready(p.Name, true)))
			}
		case p.DeletionTimestamp != nil && !k.dark[node]:
			ok(t, k.Delete("/api/v1/namespaces/kube-system/pods/"+p.Name+"?gracePeriodSeconds=0"))
		}
	}
}

// gone404 is nil where the object is gone.
func gone404(err error) error {
	if err != nil && strings.Contains(err.Error(), ": 404: ") {
		return nil
	}
	return err
}

// count is the number of pods of the former version, of nodes with power whose one pod is ready and of the new one, and the
// dark nodes that have a pod of the new one.
func (k kubelets) count(t *testing.T) (old, lit int, dark map[string]bool) {
	t.Helper()
	dark = map[string]bool{}
	for _, p := range k.pods(t) {
		switch next := p.Spec.Containers[0].Image == "next"; {
		case !next:
			old++
		case k.dark[p.Spec.NodeName]:
			dark[p.Spec.NodeName] = true
		case ready(p.Status.Conditions):
			lit++
		}
	}
	return old, lit, dark
}

func (k kubelets) until(t *testing.T, what string, good func(old, lit int, dark map[string]bool) bool) {
	t.Helper()
	began := time.Now()
	defer func() { t.Logf("%s: after %s", what, seconds(time.Since(began))) }()
	fair.Eventually(t, 3*time.Minute, what, func() error {
		k.tick(t)
		old, lit, dark := k.count(t)
		if !good(old, lit, dark) {
			return fmt.Errorf("%d former pods, %d nodes with power upgraded, %d dark nodes with a new pod", old, lit, len(dark))
		}
		return nil
	})
}

// synced waits until the controller has looked at everything again.
func (k kubelets) synced(t *testing.T) {
	t.Helper()
	for range 3 { // a pod may come of what it saw before
		var ds appsv1.DaemonSet
		ok(t, k.Patch(daemonsets+"edgemesh-agent", map[string]any{"spec": map[string]any{"revisionHistoryLimit": 10 + time.Now().Nanosecond()%1000}}))
		ok(t, k.Do(http.MethodGet, daemonsets+"edgemesh-agent", nil, &ds))
		fair.Eventually(t, time.Minute, "the controller has seen the DaemonSet", func() error {
			k.tick(t)
			var now appsv1.DaemonSet
			if err := k.Do(http.MethodGet, daemonsets+"edgemesh-agent", nil, &now); err != nil || now.Status.ObservedGeneration >= ds.Generation {
				return err
			}
			return context.DeadlineExceeded
		})
	}
}
