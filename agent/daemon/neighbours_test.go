package daemon

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"edgemesh/agent/control"
	"edgemesh/cni/overlap"
)

func TestBeside(t *testing.T) {
	at := func(p string, route bool) overlap.Conflict {
		return overlap.Conflict{Other: netip.MustParsePrefix(p), Route: route}
	}
	got := beside([]overlap.Conflict{at("10.244.1.1/24", false), at("10.244.7.1/16", false), at("10.244.2.0/24", true)},
		[]netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")})
	if len(got) != 1 || got[0] != at("10.244.7.1/16", false) {
		t.Errorf("left: %v", got)
	}
}

func TestOverlapFinding(t *testing.T) {
	pods := netip.MustParsePrefix("10.244.0.0/16")
	address := overlap.Conflict{Range: pods, Other: netip.MustParsePrefix("10.244.9.1/24"), Device: "docker0"}
	route := overlap.Conflict{Range: pods, Other: netip.MustParsePrefix("10.244.8.0/24"), Device: "flannel.1", Route: true}
	for _, c := range []struct {
		conflicts []overlap.Conflict
		err       error
		want      control.Severity
		text      string
	}{
		{nil, nil, control.OK, ""},
		{[]overlap.Conflict{route}, nil, control.Warning, "flannel.1"},
		{[]overlap.Conflict{route, address}, nil, control.Broken, "docker0"},
		{[]overlap.Conflict{{Range: pods, Other: netip.MustParsePrefix("10.0.0.0/8"), Device: "eth0", Route: true, Around: true}}, nil, control.Warning, "route 10.0.0.0/8 on interface eth0 contains the pod range"},
		{nil, errors.New("no netlink"), control.Warning, "no netlink"},
	} {
		f := overlapFinding(c.conflicts, c.err)
		if f.Severity != c.want || !strings.Contains(f.Detail, c.text) || (f.Remedy == "") != (c.want == control.OK) {
			t.Errorf("%v, %v: %+v", c.conflicts, c.err, f)
		}
	}
}
