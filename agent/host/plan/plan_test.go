package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"edgemesh/internal/membership/mesh"
)

func cidrs(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// text is what matters of a family, in one line.
func text(f Family) string {
	if !f.Wanted {
		return "nothing"
	}
	s := fmt.Sprint("blocks ", f.Blocks, " ranges ", f.Ranges, " gateway ", f.Gateway)
	if f.Keep {
		s += " keep"
	}
	if f.LAN.On {
		s += fmt.Sprint(" native ", f.LAN.Native, " vxlan ", f.LAN.VXLAN, " port ", f.LAN.VXLANPort, " bits ", f.LAN.Bits)
	}
	return s
}

// TestNew derives the state wanted from what is asked for and from what the host can hold.
func TestNew(t *testing.T) {
	lan := mesh.LAN{Native: true, VXLAN: true, ProbePort: 5211, VXLANPort: 5210, Bits: [2][]int{{24}, {64}}}
	dual := mesh.Host{Blocks: cidrs("10.244.1.0/24", "fd00:1::/64"), ClusterCIDRs: cidrs("10.244.0.0/16", "fd00::/16"), MTU: 1500, LAN: lan}
	change := func(f func(*mesh.Host)) mesh.Host { w := dual; f(&w); return w }
	const (
		v4 = "blocks [10.244.1.0/24] ranges [10.244.0.0/16] gateway 10.244.1.1"
		v6 = "blocks [fd00:1::/64] ranges [fd00::/16] gateway fd00:1::1"
	)
	for _, c := range []struct {
		name   string
		w      mesh.Host
		can    Capabilities
		addrs  []string
		v4, v6 string
		err    error
	}{
		{"everything", dual, Capabilities{}, nil, v4 + " native true vxlan true port 5210 bits [24]", v6 + " native true vxlan true port 0 bits [64]", nil},
		{"VXLAN over IPv6", change(func(w *mesh.Host) { w.LAN.IPv6Underlay = true }), Capabilities{}, nil,
			v4 + " native true vxlan true port 0 bits [24]", v6 + " native true vxlan true port 5210 bits [64]", nil},
		{"no VXLAN here", dual, Capabilities{NoVXLAN: "port in use"}, nil, v4 + " native true vxlan false port 0 bits [24]", v6 + " native true vxlan false port 0 bits [64]", nil},
		{"no LAN paths here", dual, Capabilities{NoNative: "no nf_tables", NoVXLAN: "no nf_tables"}, nil, v4, v6, nil},
		{"none wanted", change(func(w *mesh.Host) { w.LAN = mesh.LAN{} }), Capabilities{}, nil, v4, v6, nil},
		{"no IPv6 here", change(func(w *mesh.Host) { w.LAN = mesh.LAN{} }), Capabilities{NoIPv6: "disabled"}, nil, v4, "nothing", nil},
		{"only IPv6 blocks, no IPv6 here", mesh.Host{Blocks: cidrs("fd00:1::/64"), ClusterCIDRs: cidrs("fd00::/16")}, Capabilities{NoIPv6: "disabled"}, nil, "", "", ErrNoIPv6},
		{"no block", mesh.Host{ClusterCIDRs: cidrs("10.244.0.0/16")}, Capabilities{}, nil, "", "", ErrNoBlock},
		{"a range without a block", mesh.Host{Blocks: cidrs("10.244.1.0/24"), ClusterCIDRs: cidrs("10.244.0.0/16", "fd00::/16")}, Capabilities{}, nil,
			v4, "blocks [] ranges [fd00::/16] gateway invalid IP", nil},
		{"keep, before the plugin's first pod", change(func(w *mesh.Host) { w.Keep = true }), Capabilities{}, []string{"192.168.1.2"},
			"blocks [10.244.1.0/24] ranges [10.244.0.0/16] gateway invalid IP keep", "blocks [fd00:1::/64] ranges [fd00::/16] gateway invalid IP keep", nil},
		{"keep, the plugin's lowest address", change(func(w *mesh.Host) { w.Keep = true }), Capabilities{}, []string{"10.244.1.9", "10.244.1.7", "10.244.2.1", "fd00:1::5"},
			"blocks [10.244.1.0/24] ranges [10.244.0.0/16] gateway 10.244.1.7 keep", "blocks [fd00:1::/64] ranges [fd00::/16] gateway fd00:1::5 keep", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var addrs []netip.Addr
			for _, a := range c.addrs {
				addrs = append(addrs, netip.MustParseAddr(a))
			}
			s, err := New(c.w, c.can, addrs)
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if err != nil {
				return
			}
			for i, want := range []string{c.v4, c.v6} {
				if got := text(s.Each[i]); got != want {
					t.Errorf("got  %s\nwant %s", got, want)
				}
			}
		})
	}
}

func TestGateways(t *testing.T) {
	own := Family{Blocks: cidrs("10.244.1.0/24", "10.9.8.0/26")}
	if got, want := own.Gateways(), cidrs("10.244.1.1/24", "10.9.8.1/26"); !slices.Equal(got, want) {
		t.Errorf("own blocks: %v, want %v", got, want)
	}
	kept := Family{Keep: true, Blocks: own.Blocks, Gateway: netip.MustParseAddr("10.244.1.7")}
	if got, want := kept.Gateways(), cidrs("10.244.1.7/32"); !slices.Equal(got, want) {
		t.Errorf("another plugin's pods: %v, want %v", got, want)
	}
}

// TestApplyStops: a change that fails is named, and what comes after it is not made.
func TestApplyStops(t *testing.T) {
	broken, made := errors.New("broken"), 0
	err := Apply(func() ([]Change, error) {
		return []Change{
			{What: "first", Do: func() error { made++; return nil }},
			{What: "second", Do: func() error { return broken }},
			{What: "third", Do: func() error { made++; return nil }},
		}, nil
	})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "second") || made != 1 {
		t.Errorf("made %d changes, error %v", made, err)
	}
}
