package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/seldom"
	"edgemesh/internal/watchdog"
	"edgemesh/internal/wording"
)

const (
	// calm is how long an agent has to run after a crash until it counts as one that works.
	calm = time.Minute
	// lost is the exit code of a container whose end nobody saw, because its node was off.
	lost = 255
	// mostMessage bounds what the status quotes of an agent's last words, in bytes.
	mostMessage = 300
)

// rollouts stops an update of the agents that crash after they took over. Kubernetes alone continues: what fails after the
// former pod has gone does not count against maxSurge. All of it belongs to the goroutine in run.
type rollouts struct {
	api       cluster
	loop      *watchdog.Loop
	namespace string
	log       *slog.Logger
	metrics   *metrics
	reported  seldom.Log

	pods   map[string]*api.Pod // by UID, as runs; nil: not listed yet
	runs   map[string]*runs
	stated []api.FailingAgents // in the PodNetwork's status
	read   bool                // stated was read
}

// runs is what this leader has seen of a pod.
type runs struct {
	after    bool // another one was ready on the node: this one took over from it, or will
	restarts int
	since    time.Time // when it was first seen running since its last restart, zero: it does not run
}

// run looks until ctx ends.
func (r *rollouts) run(ctx context.Context) {
	in := make(chan news)
	var reader sync.WaitGroup
	defer reader.Wait()
	reader.Go(func() { follow(ctx, r.api, api.AgentPods(r.namespace), trimPod, in) })
	next := time.NewTimer(calm)
	defer next.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case n := <-in:
			err = n.err
			r.hear(ctx, n, time.Now())
		case <-next.C:
		}
		wait := calm
		if err == nil && r.pods != nil {
			wait, err = r.round(ctx, time.Now())
		}
		if err != nil && ctx.Err() == nil {
			r.metrics.failures.Inc()
			wait = sweepAgain
			if r.reported.Due("round") {
				r.log.Warn("cannot see whether agents crash after an update: nothing stops it; retrying", "err", err)
			}
		}
		next.Reset(wait)
	}
}

// trimPod leaves what counts.
func trimPod(o api.Object) {
	p, ok := o.(*api.Pod)
	if !ok {
		return
	}
	p.Meta.Labels = map[string]string{api.RevisionLabel: p.Revision()}
	p.Meta.Annotations = nil
	p.Status.Conditions = slices.DeleteFunc(p.Status.Conditions, func(c api.Condition) bool { return c.Type != readyType })
}

// hear takes what the API says of the agents' pods.
func (r *rollouts) hear(ctx context.Context, n news, now time.Time) {
	_, end := r.loop.Begin(ctx)
	defer end()
	switch {
	case n.err != nil:
		return
	case n.all:
		r.pods = map[string]*api.Pod{}
		for _, o := range n.list {
			r.take(client.Added, o, now)
		}
		for uid := range r.runs {
			if r.pods[uid] == nil {
				delete(r.runs, uid)
			}
		}
	default:
		r.take(n.event.What, n.event.Object, now)
	}
	event, _ := n.event.Object.(*api.Pod)
	for _, p := range r.pods {
		if event != nil && p.Spec.NodeName != event.Spec.NodeName {
			continue
		}
		if other := r.beside(p); other != nil && other.Ready() {
			r.runs[p.Meta.UID].after = true
		}
	}
}

func (r *rollouts) take(what string, o api.Object, now time.Time) {
	p, ok := o.(*api.Pod)
	if !ok {
		return
	}
	uid := p.Meta.UID
	if what == client.Deleted {
		delete(r.pods, uid)
		delete(r.runs, uid)
		return
	}
	r.pods[uid] = p
	if r.runs == nil {
		r.runs = map[string]*runs{}
	}
	if r.runs[uid] == nil {
		r.runs[uid] = &runs{}
	}
	x, restarts, running := r.runs[uid], 0, false
	for _, c := range p.Status.Containers {
		restarts += c.RestartCount
		running = running || c.State.Running != nil
	}
	switch {
	case !running:
		x.since = time.Time{}
	case x.since.IsZero() || restarts != x.restarts:
		x.since = now
	}
	x.restarts = restarts
}

// beside is the pod of another revision on p's node.
func (r *rollouts) beside(p *api.Pod) *api.Pod {
	for _, o := range r.pods {
		if o.Spec.NodeName == p.Spec.NodeName && o.Revision() != p.Revision() && p.Spec.NodeName != "" {
			return o
		}
	}
	return nil
}

// crash is how a pod's container ended last, nil: in no way that counts.
func crash(p *api.Pod) *api.Terminated {
	for _, c := range p.Status.Containers {
		for _, s := range []api.ContainerState{c.State, c.Last} {
			if t := s.Terminated; t != nil && t.ExitCode != 0 && t.ExitCode != lost {
				return t
			}
		}
	}
	return nil
}

// failing are the revisions that must not spread: one of their agents crashed after it took over from one that was ready, and
// has not run calmly since. What crashes beside the former one does not count, since that one still works; nor does a node
// on which the former one did not work either. again is when time alone may change the answer.
func (r *rollouts) failing(now time.Time) (out []api.FailingAgents, again time.Duration) {
	again = calm
	for uid, p := range r.pods {
		end, x := crash(p), r.runs[uid]
		was := slices.IndexFunc(r.stated, func(f api.FailingAgents) bool { return f.Revision == p.Revision() && f.Node == p.Spec.NodeName })
		if end == nil || !x.after && was < 0 || r.beside(p) != nil || !r.spreads(p) {
			continue
		}
		if !x.since.IsZero() {
			left := calm - now.Sub(x.since)
			if left <= 0 {
				continue
			}
			again = min(again, left)
		}
		f := api.FailingAgents{Revision: p.Revision(), Node: p.Spec.NodeName, Message: lastWords(end)}
		if was >= 0 {
			f = r.stated[was] // its words differ each time
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b api.FailingAgents) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Node, b.Node))
	})
	// One node is enough of each, the one that was stated if it still fails.
	kept := slices.DeleteFunc(slices.Clone(out), func(f api.FailingAgents) bool { return !slices.Contains(r.stated, f) })
	for _, f := range out {
		if !slices.ContainsFunc(kept, func(k api.FailingAgents) bool { return k.Revision == f.Revision }) {
			kept = append(kept, f)
		}
	}
	slices.SortFunc(kept, func(a, b api.FailingAgents) int { return cmp.Compare(a.Revision, b.Revision) })
	return kept, again
}

// spreads reports whether pods of another revision are left of p's DaemonSet: otherwise there is nothing to stop.
func (r *rollouts) spreads(p *api.Pod) bool {
	for _, o := range r.pods {
		if o.Revision() != p.Revision() && owner(o) == owner(p) {
			return true
		}
	}
	return false
}

func owner(p *api.Pod) string {
	if len(p.Meta.OwnerReferences) == 0 {
		return ""
	}
	return p.Meta.OwnerReferences[0].UID
}

// lastWords is what an agent ended with, in one line.
func lastWords(t *api.Terminated) string {
	lines := strings.Split(strings.TrimSpace(t.Message), "\n")
	return fmt.Sprintf("exit code %d: %s", t.ExitCode, cmp.Or(wording.Foreign(lines[len(lines)-1], mostMessage), "no message"))
}

// round writes into the PodNetwork's status which revisions fail.
func (r *rollouts) round(ctx context.Context, now time.Time) (time.Duration, error) {
	ctx, end := r.loop.Begin(ctx)
	defer end()
	path := api.PodNetworks().Path(api.NetworkName)
	var n api.PodNetwork
	if !r.read {
		if err := r.api.Get(ctx, path, &n); err != nil {
			if apierrors.IsNotFound(err) {
				return calm, nil // nobody reads it yet
			}
			return 0, fmt.Errorf("read the PodNetwork: %w", err)
		}
		r.stated, r.read = n.Status.Failing, true
	}
	want, again := r.failing(now)
	if slices.Equal(want, r.stated) {
		return again, nil
	}
	var value any
	if len(want) > 0 {
		value = want
	}
	err := r.api.Patch(ctx, path+"/status", client.Merge, nil, map[string]any{"status": map[string]any{"failing": value}}, &n)
	if err != nil {
		return 0, fmt.Errorf("write which revisions fail into the PodNetwork's status: %w", err)
	}
	if !slices.Equal(n.Status.Failing, want) {
		return 0, errors.New("the PodNetwork has no status.failing: apply the CRDs of this release")
	}
	for _, f := range want {
		if !slices.Contains(r.stated, f) {
			r.log.Warn("an agent crashes after it took over: the rollout of its revision stops until it runs for a minute; fix the cause, or roll back",
				"revision", f.Revision, "node", f.Node, "ended", f.Message)
		}
	}
	if len(want) == 0 {
		r.log.Info("no agent crashes after it took over: rollouts continue")
	}
	r.stated = want
	return again, nil
}
