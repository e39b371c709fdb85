package main

import (
	"strings"
	"testing"

	"edgemesh/agent/control"
)

// TestPolicyPort: a port that a policy names and nobody has is shown, and who would have to have it.
func TestPolicyPort(t *testing.T) {
	var out strings.Builder
	none := &control.PolicyDirection{Policies: []string{"shop/p"}, NoPort: []string{"shop/p: http (TCP)"}}
	printPolicies(&out, control.Policies{Pods: []control.PolicyPod{{Pod: "shop/web-0", Ingress: none, Egress: none}}})
	for _, want := range []string{"no container of a pod here that the policy selects has this port, which matches nothing: shop/p: http (TCP)\n", "no container of a pod that is a peer has this port"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("without %q:\n%s", want, out.String())
		}
	}
}
