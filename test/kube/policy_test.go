package kube

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"edgemesh/test/kube/cluster"
)

const (
	labelPromise = time.Second // from the change of a label in the cloud until an edge enforces it
	labelChanges = 20          // in each direction
	labelHold    = 2200 * time.Millisecond
)

// friendsOnly lets none but pods with the label friend reach the shop's pods.
const friendsOnly = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friends-only, namespace: default}
spec:
  podSelector: {matchLabels: {app: shop}}
  ingress: [{from: [{podSelector: {matchLabels: {friend: "yes"}}}]}]
`

// A pod of the cloud node loses a label and gets it again: how soon an edge behind a NAT refuses its packets, those of a flow that was
// running among them, and how soon it admits them.
func TestPolicyLabel(t *testing.T) {
	c, _ := installed(t)
	labelEnforced(t, c, "Kubernetes")
}

// labelEnforced measures from the moment before the change is sent to the API server: to the first message that gets no answer, or to
// the first answer.
func labelEnforced(t *testing.T, c *cluster.Cluster, where string) {
	t.Helper()
	shop, web := waitPods(t, "app=shop", 2, time.Minute), waitPods(t, "app=web", 4, 2*time.Minute)
	to, guest, stranger := shop[0], on(t, web, "cloud"), on(t, web, "edge-a1")
	label := func(ctx context.Context, value any) error {
		return c.API().Do(ctx, http.MethodPatch, "/api/v1/namespaces/default/pods/"+guest.name,
			map[string]any{"metadata": map[string]any{"labels": map[string]any{"friend": value}}}, nil)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_ = label(ctx, nil)
		if _, err := c.Kubectl(ctx, "delete", "networkpolicy", "friends-only", "--ignore-not-found"); err != nil {
			t.Error(err)
		}
	})
	ok(t, label(t.Context(), "yes"))
	kubectlIn(t, friendsOnly, "apply", "-f", "-")
	eventually(t, cachePromise, func(ctx context.Context) error {
		if reach(ctx, c, stranger, to) == nil {
			return fmt.Errorf("%s is answered against the policy", stranger.name)
		}
		return reach(ctx, c, guest, to)
	})

	flow, err := c.StartFlow(t.Context(), guest.node, guest.name, "udp", to.ip)
	ok(t, err)
	clock := product.Start()
	defer clock.Stop()
	time.Sleep(labelHold) // sleep: the label holds
	var lost, gained []time.Time
	for range labelChanges {
		lost = append(lost, time.Now())
		ok(t, label(t.Context(), nil))
		time.Sleep(labelHold) // sleep: the label holds
		gained = append(gained, time.Now())
		ok(t, label(t.Context(), "yes"))
		time.Sleep(labelHold) // sleep: the label holds
	}
	saw, err := flow.Stop()
	ok(t, err)
	// A change's silence is the one that lasts when the label comes back; others are stalls, which say nothing about a policy. Where one ran
	// into the change, the moment of refusal was not seen.
	var closed, open []time.Duration
	for i := range labelChanges {
		at := slices.IndexFunc(saw.Silences, func(s cluster.Silence) bool { return s.At.Before(gained[i]) && s.At.Add(s.Length()).After(gained[i]) })
		if at < 0 {
			t.Errorf("change %d: answered without its label for %v; silences: %v", i+1, labelHold, saw.Silences)
			continue
		}
		measure := func(what string, took *[]time.Duration, from, end time.Time) {
			*took = append(*took, end.Sub(from))
			if clock.Between(from, end) > labelPromise {
				t.Errorf("change %d: %s after %v, want at most %v", i+1, what, end.Sub(from), labelPromise)
			}
		}
		s := saw.Silences[at]
		if end := s.At.Add(cluster.FlowInterval); end.After(lost[i]) { // the last answer, and the message after it
			measure("refused", &closed, lost[i], end)
		}
		measure("admitted", &open, gained[i], s.At.Add(s.Length()))
	}
	if len(closed) < labelChanges*3/4 {
		t.Fatalf("only %d of %d refusals were seen between stalls: %v", len(closed), labelChanges, saw.Silences)
	}
	for what, took := range map[string][]time.Duration{"loses its label: an edge refuses it": closed, "gets it again: the edge admits it": open} {
		slices.Sort(took)
		n := len(took)
		figure(t, "%s: a pod in the cloud %s after %d ms (median; 90th percentile %d, most %d, of %d; promised: %d)", where, what,
			took[n/2].Milliseconds(), took[n*9/10].Milliseconds(), took[n-1].Milliseconds(), n, labelPromise.Milliseconds())
	}
}
