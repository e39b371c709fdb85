package controller

import (
	"context"
	"log/slog"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/wording/wordingtest"
)

// statusAPI has a PodNetwork whose status is written.
type statusAPI struct {
	cluster
	status api.PodNetworkStatus
	writes int
	older  bool // its CRD has no such field
}

func (f *statusAPI) Get(_ context.Context, _ string, out any) error {
	out.(*api.PodNetwork).Status = f.status
	return nil
}

func (f *statusAPI) Patch(_ context.Context, _, _ string, _ url.Values, in, out any) error {
	f.writes++
	value, _ := in.(map[string]any)["status"].(map[string]any)["failing"].([]api.FailingAgents)
	if !f.older {
		f.status.Failing = value
	}
	return f.Get(context.Background(), "", out)
}

// agentPod is a pod of one DaemonSet, on a node.
func agentPod(node, revision string, ready bool, c api.ContainerStatus) *api.Pod {
	p := &api.Pod{Meta: api.Meta{Name: node + revision, UID: node + revision, Labels: map[string]string{api.RevisionLabel: revision},
		OwnerReferences: []api.OwnerReference{{UID: "daemonset"}}}, Spec: api.PodSpec{NodeName: node}}
	p.Status.Containers = []api.ContainerStatus{c}
	p.Status.Conditions = []api.Condition{{Type: "Ready", Status: map[bool]string{true: "True", false: "False"}[ready]}}
	return p
}

func running(restarts, code int) (c api.ContainerStatus) {
	c.State.Running, c.RestartCount = &struct{}{}, restarts
	if restarts > 0 {
		c.Last.Terminated = &api.Terminated{ExitCode: code, Message: "first\nlast words\n"}
	}
	return c
}

func ended(code int) (c api.ContainerStatus) {
	c.State.Terminated = &api.Terminated{ExitCode: code, Message: "first\nlast words\n"}
	return c
}

// TestRollouts: what crashes after it took over stops its revision, until it runs for a minute; whatever else fails does not.
func TestRollouts(t *testing.T) {
	f := &statusAPI{}
	r := &rollouts{api: f, log: slog.New(slog.DiscardHandler), metrics: newMetrics(nil)}
	now := time.Unix(1e9, 0)
	see := func(what string, p *api.Pod) {
		trimPod(p)
		r.hear(t.Context(), news{event: client.Event{What: what, Object: p}}, now)
	}
	want := func(why string, revisions ...string) {
		t.Helper()
		if _, err := r.round(t.Context(), now); err != nil {
			t.Fatal(why, err)
		}
		var got []string
		for _, x := range f.status.Failing {
			got = append(got, x.Revision+" "+x.Node)
		}
		if !reflect.DeepEqual(got, revisions) {
			t.Errorf("%s: %v, want %v", why, got, revisions)
		}
	}
	ok := running(0, 0)
	r.hear(t.Context(), news{all: true, list: []api.Object{agentPod("a", "1", true, ok), agentPod("b", "1", true, ok), agentPod("c", "1", true, ok),
		agentPod("dark", "1", false, ok), agentPod("bad", "1", false, running(9, 1))}}, now)
	want("one node does not work, as before")

	see(client.Added, agentPod("a", "2", false, ended(2)))
	want("it crashes beside the former one")
	see(client.Modified, agentPod("a", "2", true, running(1, 2)))
	see(client.Deleted, agentPod("a", "1", true, ok))
	now = now.Add(calm)
	want("it took over and runs")

	see(client.Added, agentPod("bad", "2", true, ok))
	see(client.Deleted, agentPod("bad", "1", false, running(9, 1)))
	see(client.Modified, agentPod("bad", "2", false, ended(1)))
	want("a node where the former one did not work either")
	see(client.Added, agentPod("dark", "2", false, api.ContainerStatus{}))
	want("a dark node has a pod that never ran")

	see(client.Added, agentPod("b", "2", true, ok))
	see(client.Deleted, agentPod("b", "1", true, ok))
	see(client.Modified, agentPod("b", "2", false, ended(lost)))
	want("its node was off")
	see(client.Modified, agentPod("b", "2", false, ended(2)))
	want("it took over and crashed", "2 b")
	if m := f.status.Failing[0].Message; m != "exit code 2: last words" {
		t.Errorf("message %q", m)
	}
	writes := f.writes
	see(client.Modified, agentPod("b", "2", true, running(2, 1)))
	now = now.Add(calm - time.Second)
	want("it runs, and not for long", "2 b")
	see(client.Modified, agentPod("b", "2", false, ended(2)))
	want("it crashed again", "2 b")
	if f.writes != writes {
		t.Errorf("%d writes of what was said before", f.writes-writes)
	}

	// Another one leads: it knows by the status.
	r = &rollouts{api: f, log: r.log, metrics: r.metrics}
	r.hear(t.Context(), news{all: true, list: []api.Object{agentPod("b", "2", false, ended(2)), agentPod("c", "1", true, ok)}}, now)
	want("after the leader has changed", "2 b")
	see(client.Modified, agentPod("b", "2", true, running(3, 2)))
	now = now.Add(calm)
	want("it works again")
	see(client.Added, agentPod("c", "2", true, ok))
	see(client.Deleted, agentPod("c", "1", true, ok))
	see(client.Modified, agentPod("c", "2", false, ended(137)))
	want("nothing is left to be stopped")

	f.older = true
	see(client.Added, agentPod("b", "3", true, ok))
	see(client.Deleted, agentPod("b", "2", true, ok))
	see(client.Modified, agentPod("b", "3", false, ended(1)))
	if _, err := r.round(t.Context(), now); err == nil || !strings.Contains(err.Error(), "CRDs") {
		t.Errorf("older CRDs: %v", err)
	}
}

// What an agent ended with, as its kubelet says it, is bounded and printable.
func TestLastWordsOfALiar(t *testing.T) {
	for _, text := range []string{wordingtest.Hostile(), "first\n\x1b[2J\u202ex" + strings.Repeat("y", 1<<10)} {
		if bad := wordingtest.Bad(lastWords(&api.Terminated{Message: text}), mostMessage+32); bad != "" {
			t.Errorf("it %s", bad)
		}
	}
}
