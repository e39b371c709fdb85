package config

import (
	"strings"
	"testing"

	"edgemesh/internal/membership/mesh"
)

// Sealed packets with repair carry unless the file or, where that says nothing, the membership turns them off.
func TestCarrier(t *testing.T) {
	const common = "membership: {file: /m.yaml}\nnodeName: edge-1\n"
	for _, c := range []struct {
		yaml       string
		membership mesh.Sealed
		uses       bool
	}{
		{"", "", true}, {"", mesh.SealedOff, false}, {"", mesh.SealedAuto, true},
		{"carrier: {}", mesh.SealedAuto, true}, {"carrier: {sealed: auto}", "", true}, {"carrier: {sealed: auto}", mesh.SealedOff, true},
		{`carrier: {sealed: "off"}`, mesh.SealedAuto, false}, {"carrier: {sealed: auto}\nnodes: {edge-1: {carrier: {sealed: \"off\"}}}", mesh.SealedAuto, false},
		{"nodes: {edge-2: {carrier: {sealed: \"off\"}}}", "", true},
	} {
		got, err := Parse("agent.yaml", []byte(common+c.yaml), "")
		if err != nil || got.Carrier.UsesSealed(mesh.Carrier{Sealed: c.membership}) != c.uses {
			t.Errorf("%q, membership %q: %+v, %v", c.yaml, c.membership, got.Carrier, err)
		}
	}
	if _, err := Parse("agent.yaml", []byte(common+"carrier: {sealed: always}"), ""); err == nil || !strings.Contains(err.Error(), "carrier.sealed") {
		t.Errorf("another value: %v", err)
	}
}
