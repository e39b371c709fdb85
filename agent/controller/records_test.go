package controller

import (
	"bytes"
	"context"
	"log/slog"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/kubetest"
)

// announced is an API with a PodNetwork, whose status is patched.
type announced struct {
	cluster
	network api.PodNetwork
}

func (a *announced) Get(_ context.Context, _ string, out any) error {
	*out.(*api.PodNetwork) = a.network
	return nil
}

func (a *announced) Patch(_ context.Context, _, _ string, _ url.Values, in, _ any) error {
	a.network.Status.RecordsLease, _ = in.(map[string]any)["status"].(map[string]any)["recordsLease"].(string)
	return nil
}

// Agents take a controller that keeps the records for one that guards the objects: one that does not announces nothing, unless
// the operator trusts all nodes, and takes back what was announced. It warns once that lasts: helm makes the webhook after the controller.
func TestUnguardedAnnouncesNothing(t *testing.T) { synctest.Test(t, testUnguardedAnnouncesNothing) }

func testUnguardedAnnouncesNothing(t *testing.T) {
	var log bytes.Buffer
	a, open := &announced{network: *kubetest.PodNetwork("10.244.0.0/16")}, false
	r := &records{api: a, log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})), unguarded: func() bool { return open }}
	for i, x := range []struct {
		open, trusted bool
		want          string
	}{{false, false, "ns/lease"}, {true, false, ""}, {true, true, "ns/lease"}, {false, false, "ns/lease"}} {
		open, a.network.Spec.TrustedNodes = x.open, x.trusted
		if err := r.say(t.Context(), "ns/lease"); err != nil || a.network.Status.RecordsLease != x.want {
			t.Errorf("%d: %v, %q", i, err, a.network.Status.RecordsLease)
		}
		time.Sleep(openFor)
	}
	if log.Len() > 0 {
		t.Errorf("what passed is a warning: %s", log.String())
	}
	for open, a.network.Spec.TrustedNodes = true, false; log.Len() == 0; time.Sleep(sayEvery) {
		if err := r.say(t.Context(), "ns/lease"); err != nil {
			t.Fatal(err)
		}
	}
	if since := time.Since(r.open) - sayEvery; since != openFor {
		t.Errorf("a warning after %v, want %v", since, openFor)
	}
}
