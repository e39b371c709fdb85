package kube

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/kubetest"
)

// A node with more blocks and relay addresses than a MeshNode takes shows the first, and says so.
func TestReportFits(t *testing.T) {
	r := &reporter{writer: &writer{}}
	for range 6 {
		r.relayAddrs = append(r.relayAddrs, "/dns4/"+strings.Repeat("r", 190)+"/tcp/4001")
	}
	w := want{node: kubetest.Node("a", 1)}
	for i := range 12 {
		w.blocks = append(w.blocks, netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i)))
	}
	for i := range 100 {
		w.node.Spec.PodCIDRs = append(w.node.Spec.PodCIDRs, fmt.Sprintf("192.168.%d.0/24", i))
	}
	w.ranges = kubetest.Prefixes(t, "10.244.0.0/16")
	st := r.report(w, &api.MeshNode{}, nil)
	if len(st.PodCIDRs) != 8 || st.PodCIDRs[7] != "10.244.7.0/24" || len(st.RelayAddresses) != 4 {
		t.Errorf("%d blocks, %d relay addresses", len(st.PodCIDRs), len(st.RelayAddresses))
	}
	for i, want := range []string{"only the first 8 of 12 blocks are shown; ", "only the first 4 of 6 relay addresses are shown; "} {
		if m := st.Conditions[i].Message; !strings.HasPrefix(m, want) || len(m) > 640 {
			t.Errorf("%d bytes, without %q: %s", len(m), want, m)
		}
	}
	r.relayAddrs, w.blocks, w.node.Spec.PodCIDRs = r.relayAddrs[:4], w.blocks[:8], nil
	st = r.report(w, &api.MeshNode{}, nil)
	for _, c := range st.Conditions {
		if len(st.PodCIDRs) != 8 || len(st.RelayAddresses) != 4 || strings.Contains(c.Message, "only") {
			t.Errorf("at the bounds: %+v", st)
		}
	}
}
