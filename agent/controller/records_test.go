package controller

import (
	"bytes"
	"context"
	"log/slog"
	"net/url"
	"strings"
	"testing"

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

// Where nothing guards the objects the log says so, with the remedy, until the operator trusts all nodes; records are kept all the same.
func TestUnguardedIsSaid(t *testing.T) {
	for _, x := range []struct {
		version       string
		trusted, said bool
	}{{"v1.29.14", false, true}, {"v1.29.14", true, false}, {"v1.30.0", false, false}} {
		var log bytes.Buffer
		a := &announced{network: *kubetest.PodNetwork("10.244.0.0/16")}
		a.network.Spec.TrustedNodes = x.trusted
		r := &records{api: a, log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})),
			version: func(context.Context) (string, error) { return x.version, nil }}
		if err := r.say(t.Context(), "ns/lease"); err != nil || a.network.Status.RecordsLease != "ns/lease" {
			t.Errorf("%+v: %v, %q", x, err, a.network.Status.RecordsLease)
		}
		if said := log.String(); strings.Contains(said, "trustedNodes") != x.said || (said != "") != x.said {
			t.Errorf("%+v: %q", x, said)
		}
	}
}
