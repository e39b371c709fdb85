package decide

import (
	"net/netip"
	"slices"
	"testing"

	"edgemesh/internal/membership/mesh"
)

// uplinksOf gives each address of an offer a link: eth0, eth1 …
func uplinksOf(o Offer) []mesh.Uplink {
	var out []mesh.Uplink
	for i, a := range slices.Concat(o.Addrs, o.Global) {
		out = append(out, mesh.Uplink{Link: "eth" + string(rune('0'+i)), Index: 2 + i, Addr: a.Addr, Bits: a.Bits, MTU: a.MTU, MAC: a.MAC})
	}
	return out
}

// trusting is an offer of a node whose membership trusts these networks.
func trusting(o Offer, networks ...string) Offer {
	for _, n := range networks {
		o.trust.Trusted = append(o.trust.Trusted, netip.MustParsePrefix(n))
	}
	return o
}

// global is an offer with a global address alone.
func global(a string) Offer {
	o := goodOffer()
	o.Global = []Address{addr(a, 64)}
	return o
}

func TestCandidates(t *testing.T) {
	change := func(o Offer, f func(*Offer)) Offer { o.Addrs = slices.Clone(o.Addrs); f(&o); return o }
	lan1, lan2 := goodOffer(addr("192.168.1.11", 24)), goodOffer(addr("192.168.1.12", 24))
	for _, c := range []struct {
		name   string
		us, by Offer
		v4, v6 bool
		want   []string // pods, slot, way, MTU
	}{
		{"one LAN", lan1, lan2, true, false, []string{"4 0 192.168.1.12 on eth0 1500", "4 3 vxlan to 192.168.1.12 1450"}},
		{"IPv6 pods have no native path over IPv4", lan1, lan2, true, true, []string{
			"4 0 192.168.1.12 on eth0 1500", "4 3 vxlan to 192.168.1.12 1450", "6 3 vxlan to 192.168.1.12 1450"}},
		{"IPv6 LAN, IPv4 pods too", goodOffer(addr("fd99::11", 64)), goodOffer(addr("fd99::12", 64)), true, true, []string{
			"4 0 fd99::12 on eth0 1500", "6 0 fd99::12 on eth0 1500"}},
		{"VXLAN over IPv6", trusting(change(goodOffer(addr("fd99::11", 64)), func(o *Offer) { o.VXLANIPv6 = true }), "fd98::/15"),
			change(goodOffer(addr("fd98::12", 64)), func(o *Offer) { o.VXLANIPv6 = true }), true, false, []string{"4 3 vxlan to fd98::12 1430 any"}},
		{"routed", lan1, goodOffer(addr("192.168.2.12", 24)), true, false, nil},
		{"routed, in one trusted network", trusting(lan1, "10.0.0.0/8", "192.168.0.0/16"), goodOffer(addr("192.168.2.12", 24)), true, false, []string{"4 3 vxlan to 192.168.2.12 1450 any"}},
		{"routed, between two trusted networks", trusting(lan1, "192.168.1.0/24", "192.168.2.0/24"), goodOffer(addr("192.168.2.12", 24)), true, false, nil},
		{"routed, the peer's word does not count", lan1, trusting(goodOffer(addr("192.168.2.12", 24)), "192.168.0.0/16"), true, false, nil},
		{"no Ethernet, no trust", change(lan1, func(o *Offer) { o.Addrs[0].MAC = MAC{} }), lan2, true, false, nil},
		{"one side has the wider prefix", lan1, goodOffer(addr("192.168.1.12", 16)), true, false, []string{
			"4 0 192.168.1.12 on eth0 1500", "4 3 vxlan to 192.168.1.12 1450"}},
		{"the other is outside of the narrower one", trusting(goodOffer(addr("192.168.1.11", 28)), "192.168.1.0/24"), goodOffer(addr("192.168.1.33", 24)), true, false, []string{
			"4 3 vxlan to 192.168.1.33 1450 any"}},
		{"both have the same address", lan1, lan1, true, false, nil},
		{"their other address is ours", goodOffer(addr("192.168.1.11", 24), addr("10.0.0.5", 8)), goodOffer(addr("192.168.1.12", 24), addr("10.0.0.5", 8)), true, false, []string{
			"4 0 192.168.1.12 on eth0 1500", "4 3 vxlan to 192.168.1.12 1450"}},
		{"global addresses on one link, not trusted", global("2a05:6:1::11"), global("2a05:6:1::12"), true, true, nil},
		{"global addresses on one link", trusting(global("2a05:6:1::11"), "2a05:6:1::/48"), global("2a05:6:1::12"), true, true, []string{
			"4 0 2a05:6:1::12 on eth0 1500", "6 0 2a05:6:1::12 on eth0 1500"}},
		{"global addresses of one site", trusting(global("2a05:6:1::11"), "2a05:6:1::/48"), global("2a05:6:1:1::12"), true, true, nil},
		{"global addresses of two trusted networks", trusting(global("2a05:6:1::11"), "2a05:6:1::/126", "2a05:6:1::10/124"), global("2a05:6:1::1"), true, true, nil},
		{"global addresses beside private ones", trusting(change(lan1, func(o *Offer) { o.Global = global("2a05:6:1::11").Global }), "2a05:6:1::/48"),
			change(lan2, func(o *Offer) { o.Global = global("2a05:6:1::12").Global }), true, false, []string{
				"4 0 192.168.1.12 on eth0 1500", "4 1 2a05:6:1::12 on eth1 1500", "4 3 vxlan to 192.168.1.12 1450"}},
		{"two uplinks each", goodOffer(addr("192.168.1.11", 24), addr("10.0.0.11", 24)), goodOffer(addr("10.0.0.12", 24), addr("192.168.1.12", 24)), true, false, []string{
			"4 0 10.0.0.12 on eth1 1500", "4 1 192.168.1.12 on eth0 1500", "4 3 vxlan to 10.0.0.12 1450"}},
		{"no private address", lan1, goodOffer(), true, true, nil},
		{"no pods in common", lan1, lan2, false, false, nil},
		{"native is off there", lan1, change(lan2, func(o *Offer) { o.NoNative = "off" }), true, false, []string{"4 3 vxlan to 192.168.1.12 1450"}},
		{"VXLAN is off here", change(lan1, func(o *Offer) { o.NoVXLAN = "off" }), lan2, true, false, []string{"4 0 192.168.1.12 on eth0 1500"}},
		{"nodes' packets in the tunnel here alone", change(lan1, func(o *Offer) { o.PodsOnly = true }), lan2, true, false, nil},
		{"nodes' packets in the tunnel there alone", lan1, change(lan2, func(o *Offer) { o.PodsOnly = true }), true, false, nil},
		{"other VXLAN port", change(lan1, func(o *Offer) { o.VXLANPort = 4789 }), lan2, true, false, []string{"4 0 192.168.1.12 on eth0 1500"}},
		{"jumbo frames", change(lan1, func(o *Offer) { o.Addrs[0].MTU = 9000 }), change(lan2, func(o *Offer) { o.Addrs[0].MTU = 9000 }), true, false, []string{
			"4 0 192.168.1.12 on eth0 1500", "4 3 vxlan to 192.168.1.12 1500"}},
		{"a small link", change(lan1, func(o *Offer) { o.Addrs[0].MTU = 1400 }), lan2, true, false, []string{
			"4 0 192.168.1.12 on eth0 1400", "4 3 vxlan to 192.168.1.12 1350"}},
		{"too small a link", change(lan1, func(o *Offer) { o.Addrs[0].MTU = 1000 }), lan2, true, false, nil},
		{"cloned machines", trusting(lan1, "192.168.1.0/24"), change(lan2, func(o *Offer) { o.Addrs[0].MAC = lan1.Addrs[0].MAC }), true, false, []string{"4 3 vxlan to 192.168.1.12 1450 any"}},
		{"no Ethernet", change(trusting(lan1, "192.168.1.0/24"), func(o *Offer) { o.Addrs[0].MAC = MAC{} }), lan2, true, false, []string{"4 3 vxlan to 192.168.1.12 1450 any"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, k := range candidates(c.us, c.by, uplinksOf(c.us), true, 0, c.v4, c.v6) {
				pods := "4"
				if k.v6 {
					pods = "6"
				}
				text := pods + " " + string(rune('0'+k.slot)) + " " + k.String() + " " + itoa(k.mtu)
				if k.mac == (MAC{}) {
					text += " any"
				}
				got = append(got, text)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func itoa(n int) string {
	s := ""
	for ; n > 0; n /= 10 {
		s = string(rune('0'+n%10)) + s
	}
	return s
}

// Both sides give a candidate the same number, whatever their addresses.
func TestCandidatesAgree(t *testing.T) {
	a := goodOffer(addr("192.168.1.11", 24), addr("10.1.0.1", 16), addr("fd99::11", 64), addr("10.0.0.11", 24))
	b := goodOffer(addr("10.1.0.2", 16), addr("192.168.1.12", 24), addr("192.168.1.13", 24), addr("10.1.0.3", 16), addr("fd99::12", 64))
	a, b = trusting(a, "192.168.0.0/16", "10.1.0.0/16"), trusting(b, "192.168.0.0/16", "10.1.0.0/16")
	seen := map[netip.Addr]bool{}
	for round := range 20 {
		there, back := candidates(a, b, uplinksOf(a), true, round, true, true), candidates(b, a, uplinksOf(b), false, round, true, true)
		if len(there) != len(back) {
			t.Fatalf("%d and %d candidates", len(there), len(back))
		}
		for i, c := range there {
			d := back[i]
			if c.key() != d.key() || c.kind != d.kind || c.local != d.via || c.via != d.local || c.mtu != d.mtu || (c.mac == MAC{}) != (d.mac == MAC{}) {
				t.Errorf("round %d, %d: %+v and %+v", round, i, c, d)
			}
			if c.kind == mesh.VXLAN {
				seen[c.via] = true
			}
		}
	}
	if len(seen) != 4 {
		t.Errorf("VXLAN was tried to %d of 4 addresses", len(seen))
	}
}
