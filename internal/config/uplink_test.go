package config

import (
	"strings"
	"testing"
)

func TestUplink(t *testing.T) {
	const common = "membership: {file: /m.yaml}\nnodeName: edge-1\n"
	for text, want := range map[string]Metered{
		"": MeteredAuto, "uplink: {}": MeteredAuto, "uplink: {metered: auto}": MeteredAuto, "uplink: {metered: true}": MeteredYes,
		"uplink: {metered: 'true'}": MeteredYes, "uplink: {metered: false}": MeteredNo,
		"uplink: {metered: false}\nnodes: {edge-1: {uplink: {metered: true}}}": MeteredYes,
	} {
		got, err := Parse("agent.yaml", []byte(common+text), "")
		if err != nil || got.Uplink.Metered != want {
			t.Errorf("%q: %q, %v; want %s", text, got.Uplink.Metered, err, want)
		}
	}
	_, err := Parse("/etc/agent.yaml", []byte(common+"uplink: {metered: perhaps}"), "")
	if err == nil || !strings.Contains(err.Error(), "/etc/agent.yaml") || !strings.Contains(err.Error(), `uplink.metered: "perhaps" is not one of auto, true and false`) {
		t.Errorf("%v", err)
	}
}
