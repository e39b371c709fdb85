package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"edgemesh/agent/controller"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/test/fair"
	"edgemesh/test/kube/cluster"
	"edgemesh/test/kubeapi"
	"edgemesh/test/tier"
)

// TestCrashStopsRollout: agents of a version that crashes after it took over stop its rollout among those that were begun;
// all others keep the former one, and a corrected version reaches all. Nodes and pods are only objects, the controllers are not.
func TestCrashStopsRollout(t *testing.T) {
	tier.Long(t)
	c, err := kubeapi.New(t.TempDir())
	t.Cleanup(c.Stop)
	ok(t, err)
	ok(t, c.StartControllers("daemonset-controller"))
	ok(t, c.Install())
	ok(t, c.CreateNetwork(map[string]any{"podCIDRs": []string{"10.244.0.0/16"}}))
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- controller.Run(ctx, controller.Config{Kubeconfig: filepath.Join(c.Dir, "admin.conf"), Namespace: "kube-system", Identity: "x",
			Log: slog.New(slog.DiscardHandler)})
	}()
	t.Cleanup(func() {
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})

	k := kubelets{c, map[string]bool{}}
	const all, wave = 60, 6 // 10 %
	for i := range all {
		name := fmt.Sprintf("node-%03d", i)
		ok(t, k.CreateNode(name))
		ok(t, k.Patch("/api/v1/nodes/"+name, map[string]any{"metadata": map[string]any{"labels": map[string]any{"kubernetes.io/os": "linux"}}}))
	}
	k.daemonSet(t)
	if v, err := version.ParseGeneric(c.Version); err != nil || v.AtLeast(version.MajorMinor(1, 35)) { // stands still there until it is touched: docs/compatibility.md
		var touching sync.WaitGroup
		touching.Go(func() {
			for tick := time.NewTicker(10 * time.Second); ; {
				select {
				case <-t.Context().Done():
					return
				case now := <-tick.C:
					_ = k.Patch(daemonsets+"edgemesh-agent", map[string]any{"metadata": map[string]any{"annotations": map[string]string{"touched": now.String()}}})
				}
			}
		})
		t.Cleanup(touching.Wait)
	}
	works := func(image string) (n int) {
		for _, p := range k.pods(t) {
			if p.DeletionTimestamp == nil && ready(p.Status.Conditions) && (p.Spec.Containers[0].Image == image || image == "") {
				n++
			}
		}
		return n
	}
	k.until(t, "all nodes have a ready pod", func(int, int, map[string]bool) bool { return works("") == all })
	former := k.pods(t)[0].Spec.Containers[0].Image
	ok(t, k.Patch(daemonsets+"edgemesh-agent", map[string]any{"spec": map[string]any{"minReadySeconds": 5}}))
	k.until(t, "they are available", func(int, int, map[string]bool) bool { // for any other the surge is not asked
		var ds appsv1.DaemonSet
		ok(t, k.Do(http.MethodGet, daemonsets+"edgemesh-agent", nil, &ds))
		return ds.Status.ObservedGeneration == ds.Generation && ds.Status.NumberAvailable == all
	})
	update := func(image string) {
		_, err = k.Kubectl("-n", "kube-system", "set", "image", "daemonset/edgemesh-agent", "agent="+image)
		ok(t, err)
	}

	update(broken)
	k.until(t, "the PodNetwork names the revision", func(int, int, map[string]bool) bool { return len(k.failing(t)) > 0 })
	stopped := func() int { k.synced(t); return all - works(former) }
	gone := stopped()
	for began := time.Now(); time.Since(began) < 3*5*time.Second; { // three more waves would come in that time
		gone = stopped()
	}
	if gone == 0 || gone > 2*wave {
		t.Errorf("%d of %d nodes lost the agent that worked, want those of two waves at most, of %d each", gone, all, wave)
	}
	figure(t, "a version that crashes after it took over: %d of %d nodes have it, %d keep the former one", gone, all, works(former))

	update("next")
	k.until(t, "all have the corrected one", func(int, int, map[string]bool) bool { return works("next") == all })
	if f := k.failing(t); len(f) > 0 {
		t.Errorf("still failing: %v", f)
	}
	// What continues in spite of a crash, as the guide has it.
	_, err = k.Kubectl("-n", "kube-system", "set", "env", "daemonset/edgemesh-agent", "EDGEMESH_REVISION=none")
	ok(t, err)
	var ds appsv1.DaemonSet
	ok(t, k.Do(http.MethodGet, daemonsets+"edgemesh-agent", nil, &ds))
	if !slices.Contains(ds.Spec.Template.Spec.Containers[0].Env, corev1.EnvVar{Name: "EDGEMESH_REVISION", Value: "none"}) {
		t.Errorf("environment %+v", ds.Spec.Template.Spec.Containers[0].Env)
	}
}

// broken is the image whose agents crash once they took over.
const broken = "broken"

// failing is what the PodNetwork says.
func (k kubelets) failing(t *testing.T) map[string]bool {
	t.Helper()
	var n api.PodNetwork
	if err := k.Do(http.MethodGet, api.PodNetworks().Path(api.NetworkName), nil, &n); err != nil && !strings.Contains(err.Error(), ": 404: ") {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, f := range n.Status.Failing {
		out[f.Revision] = true
	}
	return out
}

// crash ends a pod's container.
func (k kubelets) crash(p corev1.Pod) error {
	restarts := 1
	if len(p.Status.ContainerStatuses) > 0 {
		restarts += int(p.Status.ContainerStatuses[0].RestartCount)
	}
	return k.Patch("/api/v1/namespaces/kube-system/pods/"+p.Name+"/status", map[string]any{"status": map[string]any{"containerStatuses": []any{map[string]any{
		"name": "agent", "image": broken, "imageID": broken, "ready": false, "restartCount": restarts,
		"state": map[string]any{"terminated": map[string]any{"exitCode": 1, "message": "edgemesh-agent: no"}},
	}}}})
}

// A configuration that fails once the agent has taken over stops on the first node: the next one's new agent sees it and
// leaves the former one in place.
func TestCrashAfterTakeover(t *testing.T) {
	c, _ := installed(t)
	rollout(t, 2*time.Minute)
	kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/edgemesh-controller", "--timeout=55s")
	before := agentPodNames(t, c)
	const path = "/api/v1/namespaces/kube-system/configmaps/edgemesh-agent"
	var good corev1.ConfigMap
	ok(t, c.API().Get(t.Context(), path, &good))
	write := func(ctx context.Context, text string) error {
		return c.API().Do(ctx, http.MethodPatch, path, map[string]any{"data": map[string]string{"agent.yaml": text}}, nil)
	}
	undo := func(ctx context.Context) error {
		_, err := c.Kubectl(ctx, "-n", "kube-system", "rollout", "undo", "daemonset/edgemesh-agent")
		return errors.Join(write(ctx, good.Data["agent.yaml"]), err)
	}
	undone := false
	t.Cleanup(func() {
		if !undone {
			if err := undo(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		}
	})
	// kubelet's port: that it is taken is found when the agent listens, after it has taken over.
	ok(t, write(t.Context(), good.Data["agent.yaml"]+"\nlisten: [/ip4/0.0.0.0/tcp/10250]\n"))
	kubectl(t, "-n", "kube-system", "rollout", "restart", "daemonset/edgemesh-agent")
	var network api.PodNetwork
	eventually(t, 2*time.Minute, func(ctx context.Context) error {
		if err := c.API().Get(ctx, meshAPI+"podnetworks/cluster", &network); err != nil {
			return err
		}
		if len(network.Status.Failing) == 0 {
			return errors.New("the PodNetwork names no revision that fails")
		}
		return nil
	})
	fails := network.Status.Failing[0]
	if !strings.Contains(fails.Message, "10250") {
		t.Errorf("it failed with %q", fails.Message)
	}
	// The pod that would be next ends, again and again, and says why.
	eventually(t, 2*time.Minute, func(ctx context.Context) error {
		var list corev1.PodList
		err := c.API().Get(ctx, agentPods, &list)
		for _, p := range list.Items {
			if s := p.Status.ContainerStatuses; p.Spec.NodeName != fails.Node && len(s) == 1 && s[0].RestartCount >= 2 && s[0].LastTerminationState.Terminated != nil &&
				strings.Contains(s[0].LastTerminationState.Terminated.Message, "the agent on node "+fails.Node) {
				return nil
			}
		}
		return errors.Join(err, errors.New("no pod on another node ended because of it"))
	})
	left := 0
	for _, name := range agentPodNames(t, c) {
		for _, b := range before {
			if name == b {
				left++
			}
		}
	}
	if left < len(cluster.FirstNodes())-1 {
		t.Errorf("%d former agents are left of %d, want all but one", left, len(before))
	}
	ok(t, undo(t.Context()))
	undone = true
	began := time.Now()
	rollout(t, 3*time.Minute)
	fair.Eventually(t, time.Minute, "the PodNetwork names none", func() error {
		var now api.PodNetwork
		if err := c.API().Get(t.Context(), meshAPI+"podnetworks/cluster", &now); err != nil || len(now.Status.Failing) == 0 {
			return err
		}
		return fmt.Errorf("still %v", now.Status.Failing)
	})
	figure(t, "an agent that fails after it took over (%s: %s) stops the rollout: %d of %d keep the former one; undone after %s", fails.Node, fails.Message, left, len(before), seconds(time.Since(began)))
}
