package mesh

import (
	"net/netip"
	"reflect"
	"testing"
)

func lanPlan(t *testing.T) Plan {
	t.Helper()
	p, err := NewPlan(twoSites(), "edge-1")
	if err != nil {
		t.Fatal(err)
	}
	p.Host.LAN = LAN{Native: true, VXLAN: true}
	return p
}

func TestPaths(t *testing.T) {
	lan4 := netip.MustParseAddr("192.168.1.12")
	mac := [6]byte{2, 0, 0, 0, 0, 12}
	us4 := netip.MustParseAddr("192.168.1.11")
	lan6 := netip.MustParseAddr("fd99::12")
	native := Candidate{Peer: "E2", Kind: Native, Link: "eth0", Via: lan4, MAC: mac, MTU: 1500, Probe: true, Accept: true, Use: true}
	hop := Hop{Kind: Native, Link: "eth0", Via: lan4}
	block4, gw4 := cidrs("10.244.2.0/24")[0], netip.MustParseAddr("10.244.2.1")
	sender := []Sender{{Block: block4, Link: "eth0", MAC: mac, Pods: true}}
	prober := []Sender{{Block: block4, Link: "eth0", MAC: mac}}
	block6, gw6 := cidrs("fd00:10:244:2::/64")[0], netip.MustParseAddr("fd00:10:244:2::1")
	inner6 := Hop{Kind: VXLAN, Via: gw6}
	vtep := VTEP{Gateways: []netip.Addr{gw6}, MAC: VTEPAddr("E2"), Underlay: lan4, Local: us4}
	change := func(f func(*Candidate)) Candidate { w := native; f(&w); return w }
	vxlan6 := change(func(w *Candidate) { w.Kind, w.V6, w.Slot, w.MTU, w.Local = VXLAN, true, 3, 1450, us4 })
	routed := func(via string) Candidate {
		return change(func(w *Candidate) {
			w.Kind, w.V6, w.Slot, w.MTU, w.Local, w.MAC, w.Via = VXLAN, true, 3, 1450, us4, [6]byte{}, netip.MustParseAddr(via)
		})
	}
	far4 := netip.MustParseAddr("192.168.7.12")
	trust := func(list ...string) func(*Plan) { return func(p *Plan) { p.Trust.Trusted = cidrs(list...) } }
	for _, c := range []struct {
		name string
		plan func(*Plan)
		ways []Candidate
		want Paths
	}{
		{"nothing", nil, nil, Paths{}},
		{"native", nil, []Candidate{native}, Paths{
			Routes: []PathRoute{{block4, hop, 1500}}, Probes: []ProbeRoute{{gw4, 0, hop}}, Senders: sender}},
		{"probed only", nil, []Candidate{change(func(w *Candidate) { w.Accept, w.Use = false, false })}, Paths{Probes: []ProbeRoute{{gw4, 0, hop}}, Senders: prober}},
		{"probed by one way, accepted by another of the same link", nil, []Candidate{change(func(w *Candidate) { w.Slot, w.Probe, w.Accept, w.Use = 1, false, false, false }), native}, Paths{
			Routes: []PathRoute{{block4, hop, 1500}}, Probes: []ProbeRoute{{gw4, 0, hop}}, Senders: sender}},
		{"IPv6 pods, VXLAN over IPv4", nil, []Candidate{vxlan6}, Paths{
			Routes: []PathRoute{{block6, inner6, 1450}}, Probes: []ProbeRoute{{gw6, 3, inner6}}, VTEPs: []VTEP{vtep}, Senders: []Sender{{Block: block6, Underlay: lan4, Local: us4, MAC: mac, Pods: true}}}},
		{"VXLAN across routers", nil, []Candidate{routed("192.168.7.12")}, Paths{}},
		{"VXLAN across routers, each end in another trusted network", trust("192.168.1.0/24", "192.168.7.0/24"), []Candidate{routed("192.168.7.12")}, Paths{}},
		{"VXLAN across routers of one trusted network", trust("10.0.0.0/8", "192.168.0.0/16"), []Candidate{routed("192.168.7.12")}, Paths{
			Routes: []PathRoute{{block6, inner6, 1450}}, Probes: []ProbeRoute{{gw6, 3, inner6}},
			VTEPs:   []VTEP{{Gateways: []netip.Addr{gw6}, MAC: VTEPAddr("E2"), Underlay: far4, Local: us4, Routed: true}},
			Senders: []Sender{{Block: block6, Underlay: far4, Local: us4, Pods: true}}}},
		{"IPv6 underlay", nil, []Candidate{change(func(w *Candidate) { w.Via = lan6 })}, Paths{
			Routes: []PathRoute{{block4, Hop{Native, "eth0", lan6}, 1500}}, Probes: []ProbeRoute{{gw4, 0, Hop{Native, "eth0", lan6}}}, Senders: sender}},
		{"no native IPv6 over IPv4", nil, []Candidate{change(func(w *Candidate) { w.V6 = true })}, Paths{}},
		{"a stranger", nil, []Candidate{change(func(w *Candidate) { w.Peer = "X" })}, Paths{}},
		{"this node", nil, []Candidate{change(func(w *Candidate) { w.Peer = "E1" })}, Paths{}},
		{"the peer has no IPv6", nil, []Candidate{change(func(w *Candidate) { w.Peer, w.V6, w.Via = "C", true, lan6 })}, Paths{}},
		{"no Ethernet", nil, []Candidate{change(func(w *Candidate) { w.MAC = [6]byte{} })}, Paths{}},
		{"public address", nil, []Candidate{change(func(w *Candidate) { w.Via = netip.MustParseAddr("8.8.8.8") })}, Paths{}},
		{"carrier NAT is not private", nil, []Candidate{change(func(w *Candidate) { w.Via = netip.MustParseAddr("100.64.0.9") })}, Paths{}},
		{"a pod's address is no underlay", nil, []Candidate{
			change(func(w *Candidate) { w.Via = gw4.Next() }),
			change(func(w *Candidate) { w.Kind, w.Slot, w.Via, w.Local = VXLAN, 3, gw4.Next(), us4 })}, Paths{}},
		{"VXLAN from a public address", nil, []Candidate{change(func(w *Candidate) { w.Kind, w.Slot, w.Local = VXLAN, 3, netip.MustParseAddr("100.64.0.9") })}, Paths{}},
		{"a WAN's address counts as public", func(p *Plan) { p.WAN = cidrs("192.168.0.0/16") }, []Candidate{native, vxlan6}, Paths{}},
		{"link-local", nil, []Candidate{change(func(w *Candidate) { w.Via = netip.MustParseAddr("fe80::1") })}, Paths{}},
		{"encryption always", func(p *Plan) { p.Encrypted = true }, []Candidate{native, vxlan6}, Paths{}},
		{"native is off", func(p *Plan) { p.Host.LAN.Native = false }, []Candidate{native}, Paths{}},
		{"VXLAN is off", func(p *Plan) { p.Host.LAN.VXLAN = false }, []Candidate{vxlan6}, Paths{}},
		{"VXLAN's underlay is IPv6", func(p *Plan) { p.Host.LAN.IPv6Underlay = true }, []Candidate{vxlan6}, Paths{}},
		{"no such slot", nil, []Candidate{change(func(w *Candidate) { w.Slot = ProbeSlots })}, Paths{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := lanPlan(t)
			if c.plan != nil {
				c.plan(&p)
			}
			if got := p.Paths(c.ways); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestWANIsNotPrivateUnderlay(t *testing.T) {
	for a, want := range map[string]bool{
		"10.1.2.3": true, "172.31.0.1": true, "192.168.0.1": true, "fd00::1": true, "fc00::1": true,
		"172.32.0.1": false, "100.64.0.1": false, "169.254.1.1": false, "127.0.0.1": false, "fe80::1": false, "2001:db8::1": false, "::ffff:10.0.0.1": false,
	} {
		if got := PrivateUnderlay(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: %v", a, got)
		}
	}
}

func TestBlockBits(t *testing.T) {
	p, err := NewPlan(State{Nodes: []Node{{Name: "a", PodCIDRs: cidrs("10.244.2.0/24", "fd00::/64")}, {Name: "b", PodCIDRs: cidrs("10.244.3.0/26", "10.244.4.0/24")},
		{Name: "self", PodCIDRs: cidrs("10.244.8.0/23")}}}, "self")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.BlockBits(), [2][]int{{24, 26}, {64}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestVTEPAddr(t *testing.T) {
	a := VTEPAddr("12D3KooWa")
	if a != VTEPAddr("12D3KooWa") || a == VTEPAddr("12D3KooWb") || a[0]&3 != 2 {
		t.Errorf("%x", a)
	}
}
