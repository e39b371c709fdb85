package detect

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	ours := []byte(`{"cniVersion":"1.0.0","name":"edgemesh","plugins":[{"type":"edgemesh-cni"}]}`)
	for _, c := range []struct {
		name  string
		node  Node
		want  string // names, the active one with *
		cidrs string // of the first
		hint  string // in the first one's evidence
	}{
		{name: "nothing", node: Node{Links: []string{"lo", "eth0", "docker0"}}},
		{name: "ours alone", node: Node{Conf: map[string][]byte{"10-edgemesh.conflist": ours}, Links: []string{"edgemesh-br"}}, want: "edgemesh*"},
		{name: "Multus with ours", node: Node{Conf: map[string][]byte{"00-multus.conf": []byte(`{"cniVersion":"0.3.1","name":"multus-cni-network","type":"multus",
			"delegates":[{"cniVersion":"1.0.0","name":"edgemesh","plugins":[{"type":"edgemesh-cni"},{"type":"portmap"}]}]}`), "10-edgemesh.conflist": ours}}, want: "edgemesh*"},
		{name: "Multus' shim before ours is there", node: Node{Conf: map[string][]byte{"00-multus.conf": []byte(`{"name":"multus-cni-network","type":"multus-shim",
			"clusterNetwork":"/host/etc/cni/net.d/10-edgemesh.conflist"}`)}}, want: "edgemesh*"},
		{name: "Multus with the first other file", node: Node{Conf: map[string][]byte{"00-multus.conflist": []byte(`{"name":"multus-cni-network","plugins":[{"type":"multus"}]}`),
			"10-edgemesh.conflist": ours}}, want: "edgemesh*"},
		{name: "Multus with another network", node: Node{Conf: map[string][]byte{"00-multus.conf": []byte(`{"name":"multus-cni-network","type":"multus",
			"delegates":[{"name":"cbr0","plugins":[{"type":"flannel"}]}]}`), "10-edgemesh.conflist": ours}}, want: "flannel* edgemesh"},
		{name: "Multus alone", node: Node{Conf: map[string][]byte{"00-multus.conf": []byte(`{"name":"x","type":"multus-shim"}`)}}, want: "unknown*"},
		{
			name: "Flannel",
			node: Node{
				Conf: map[string][]byte{"10-flannel.conflist": []byte(`{"name":"cbr0","cniVersion":"0.3.1","plugins":[
					{"type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}},
					{"type":"portmap","capabilities":{"portMappings":true}}]}`)},
				Links:       []string{"cni0", "flannel.1"},
				Annotations: map[string]string{"flannel.alpha.coreos.com/backend-type": "vxlan"},
				FlannelEnv: []byte("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\n" +
					"FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"),
			},
			want: "flannel*", cidrs: "10.244.3.0/24", hint: "interface flannel.1",
		},
		{
			name: "Calico",
			node: Node{
				Conf: map[string][]byte{
					"10-calico.conflist": []byte(`{"name":"k8s-pod-network","cniVersion":"0.3.1","plugins":[
						{"type":"calico","ipam":{"type":"calico-ipam"}},{"type":"bandwidth"}]}`),
					"calico-kubeconfig": []byte("apiVersion: v1"),
				},
				Links:      []string{"tunl0", "cali123", "vxlan.calico"},
				Blackholes: []netip.Prefix{netip.MustParsePrefix("192.168.5.64/26")},
			},
			want: "calico*", cidrs: "192.168.5.64/26",
		},
		{
			name: "Cilium",
			node: Node{
				Conf: map[string][]byte{
					"05-cilium.conflist":   []byte(`{"cniVersion":"0.3.1","name":"cilium","plugins":[{"type":"cilium-cni"}]}`),
					"10-edgemesh.conflist": ours,
				},
				Annotations: map[string]string{
					"network.cilium.io/ipv4-pod-cidr": "10.0.2.0/24", "network.cilium.io/ipv6-pod-cidr": "fd00:2::/112",
				},
			},
			want: "cilium* edgemesh", cidrs: "10.0.2.0/24 fd00:2::/112",
		},
		{
			name: "kindnet",
			node: Node{Conf: map[string][]byte{"10-kindnet.conflist": []byte(`{"cniVersion":"0.3.1","name":"kindnet","plugins":[
				{"type":"ptp","ipMasq":false,"ipam":{"type":"host-local",
				"ranges":[[{"subnet":"10.244.0.0/24"}],[{"subnet":"fd00:10:244::/64"}]]}}]}`)}},
			want: "kindnet*", cidrs: "10.244.0.0/24 fd00:10:244::/64",
		},
		{
			name: "plain bridge, one plugin in a .conf",
			node: Node{Conf: map[string][]byte{"87-podman.conf": []byte(`{"type":"bridge","bridge":"cni0","ipam":{"type":"host-local","subnet":"10.88.0.0/16"}}`)}},
			want: "bridge*", cidrs: "10.88.0.0/16",
		},
		{
			name: "torn first file, then another's, which is unknown",
			node: Node{Conf: map[string][]byte{
				"00-x.conflist": []byte(`{"plug`), "10-y.conflist": []byte(`{"plugins":[{"type":"antrea"}]}`), "00-old.conflist.bak": ours,
			}},
			want: "unknown*",
		},
		{name: "left-over of Flannel", node: Node{Conf: map[string][]byte{"10-edgemesh.conflist": ours}, Links: []string{"flannel.1"}}, want: "edgemesh* flannel"},
		{
			name: "left-over of Calico without VXLAN",
			node: Node{
				Conf:  map[string][]byte{"10-edgemesh.conflist": ours},
				Links: []string{"tunl0", "cali0a1b2c3d4e5", "cali11223344556"},
			},
			want: "edgemesh* calico",
		},
		{name: "Calico's pods alone", node: Node{Links: []string{"cali0a1b2c3d4e5", "cali11223344556"}}, want: "calico", hint: "interfaces cali…"},
		{name: "Cilium's pods alone", node: Node{Links: []string{"lxc0a1b2c3d4e5f", "lxc_health", "lxcbr0", "lxdbr0"}}, want: "cilium", hint: "interfaces lxc…"},
		{name: "LXC's bridge", node: Node{Links: []string{"lxcbr0", "lxdbr0", "cali"}}},
		{name: "left-over of a plain bridge", node: Node{Links: []string{"cni0"}}, want: "bridge", hint: "interface cni0"},
		{name: "Weave by its interface", node: Node{Links: []string{"weave"}}, want: "weave", hint: "interface weave"},
	} {
		found := Find(c.node)
		var names []string
		for _, f := range found {
			n := f.Name
			if f.Active {
				n += "*"
			}
			names = append(names, n)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%s: found %q, want %q", c.name, got, c.want)
			continue
		}
		if len(found) == 0 {
			continue
		}
		var cidrs []string
		for _, p := range found[0].PodCIDRs {
			cidrs = append(cidrs, p.String())
		}
		if got := strings.Join(cidrs, " "); got != c.cidrs {
			t.Errorf("%s: blocks %q, want %q", c.name, got, c.cidrs)
		}
		if c.hint != "" && !slices.Contains(found[0].Evidence, c.hint) {
			t.Errorf("%s: evidence %v lacks %q", c.name, found[0].Evidence, c.hint)
		}
	}
}

func FuzzFind(f *testing.F) {
	f.Add([]byte(`{"plugins":[{"type":"ptp","ipam":{"ranges":[[{"subnet":"x"}]]}}]}`), []byte("FLANNEL_SUBNET=1"))
	f.Fuzz(func(t *testing.T, conf, env []byte) {
		for _, x := range Find(Node{Conf: map[string][]byte{"a.conf": conf}, FlannelEnv: env}) {
			if x.Name == "" || len(x.Evidence) == 0 {
				t.Fatalf("%+v", x)
			}
		}
	})
}
