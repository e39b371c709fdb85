package nft

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	policy "edgemesh/agent/policy/compile"
	"edgemesh/internal/cni/closing"
	"edgemesh/internal/cni/conf"
	"edgemesh/internal/nstest"
)

// packetPolicies are NetworkPolicies of namespace shop.
var packetPolicies = map[string][]string{
	"peers by namespace, at one port": {`{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {tier: back}}}], ports: [{port: 80, protocol: UDP}]}]}`},
	"a port by name, and addresses": {`{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress, Egress], ingress: [{ports: [{port: main, protocol: UDP}]}],
		egress: [{to: [{ipBlock: {cidr: 10.1.1.0/24}}], ports: [{port: 80, endPort: 90, protocol: UDP}]}]}`},
	"several policies": {`{podSelector: {}, policyTypes: [Ingress, Egress], egress: [{ports: [{port: 90, protocol: UDP}]}]}`,
		`{podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {}}, {namespaceSelector: {matchLabels: {tier: back}}}]}]}`},
}

// TestPacketsInTheKernel: what the kernel lets through, packet by packet between three pods of a node, is what Verdict says; a second pass changes nothing, and the way from each set of policies to each other one leaves what a new start makes.
func TestPacketsInTheKernel(t *testing.T) {
	node := nstest.Enter(t)
	nstest.Run(t, "sysctl -qw net.ipv4.ip_forward=1")
	in := map[string]nstest.Namespace{}
	addrs := map[string]netip.Addr{"web": netip.MustParseAddr("10.1.1.2"), "db": netip.MustParseAddr("10.1.1.3"), "mon": netip.MustParseAddr("10.1.3.2")}
	back := func() {
		if err := node.Set(); err != nil {
			t.Fatal(err)
		}
	}
	for name, a := range addrs {
		ns, err := nstest.New()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ns.Close() })
		nstest.Prepare(t)
		back()
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(ns))}); err != nil {
			t.Fatal(err)
		}
		nstest.Run(t, fmt.Sprintf("ip link set %s up\nip route add %s dev %[1]s\nsysctl -qw net.ipv4.conf.%[1]s.proxy_arp=1\nsysctl -qw net.ipv4.neigh.%[1]s.proxy_delay=0\nip addr add 10.1.0.1/32 dev %[1]s", name, a))
		if err := ns.Set(); err != nil {
			t.Fatal(err)
		}
		nstest.Run(t, fmt.Sprintf("ip addr add %s/32 dev eth0\nip link set eth0 up\nip route add default dev eth0", a))
		back()
		in[name] = ns
	}
	p := NewPolicies(slog.New(slog.DiscardHandler))
	names, first := slices.Sorted(maps.Keys(packetPolicies)), map[string]string{}
	for round := range 2 {
		for _, name := range names {
			rules, at := packetWorld(t, name)
			if err := p.Enforce(enforcing(rules, at)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if now := chains(t); first[name] == "" {
				first[name] = now
			} else if now != first[name] {
				t.Errorf("%s: another way leads to\n%s\nthan to\n%s", name, now, first[name])
			}
			before, _ := generation()
			if err := NewPolicies(p.log).Enforce(enforcing(rules, at)); err != nil {
				t.Fatal(err)
			}
			if now, _ := generation(); now != before {
				t.Errorf("%s: a second pass changes the kernel's tables", name)
			}
			if round == 0 {
				passing(t, name, rules.Place(at), addrs, in, back)
			}
		}
	}
	dir, a := t.TempDir(), netip.MustParseAddr("10.1.9.9")
	if err := os.WriteFile(filepath.Join(dir, conf.PoliciesFile), []byte(`{"namespaces": {"*": ["Ingress"], "shop": ["Ingress", "Egress"]}, "except": ["free"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for namespace, want := range map[string]bool{"new": false, "shop": true} {
		err := closing.Close(dir, namespace, []netip.Addr{a})
		if list := listed(t); err != nil || !strings.Contains(list, "10.1.9.9 : jump dropped-in") || strings.Contains(list, "10.1.9.9 : jump dropped-out") != want {
			t.Errorf("a new pod of namespace %s: %v\n%s", namespace, err, list)
		}
		if list, local := listed(t), conf.LinkLocal(conf.PodMAC(a)).String(); !strings.Contains(list, local+" : jump dropped-in") {
			t.Errorf("a new pod of namespace %s is open at %s:\n%s", namespace, local, list)
		}
		closing.Forget(dir, []netip.Addr{a})
	}
	if err := closing.Close(dir, "free", []netip.Addr{a}); err != nil || strings.Contains(listed(t), "10.1.9.9") {
		t.Errorf("a new pod of a namespace that is known and not selected: %v", err)
	}
	if err := p.Enforce(enforcing(policy.Rules{}, nil)); err != nil || p.Standing() {
		t.Errorf("without policies: %v", err)
	}
}

// chains are those of the table, without what sets hold and count.
func chains(t *testing.T) string {
	t.Helper()
	lines := strings.Split(nstest.Run(t, "nft -s -t list table inet edgemesh-policy"), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// passing sends a packet for each pair of pods and each port, and compares what arrives.
func passing(t *testing.T, name string, rules policy.Placed, addrs map[string]netip.Addr, in map[string]nstest.Namespace, back func()) {
	t.Helper()
	ports := []int{80, 90, 8080}
	listeners := map[string]net.PacketConn{}
	for pod, ns := range in {
		if err := ns.Set(); err != nil {
			t.Fatal(err)
		}
		for _, port := range ports {
			c, err := net.ListenPacket("udp4", netip.AddrPortFrom(addrs[pod], uint16(port)).String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			listeners[fmt.Sprint(pod, port)] = c
		}
		back()
	}
	for from, ns := range in {
		if err := ns.Set(); err != nil {
			t.Fatal(err)
		}
		for to := range in {
			for _, port := range ports {
				c, err := net.Dial("udp4", netip.AddrPortFrom(addrs[to], uint16(port)).String())
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprint(c, from)
				c.Close()
			}
		}
		back()
	}
	passed := 0
	time.Sleep(100 * time.Millisecond) // sleep: what passes arrives
	for to := range in {
		for _, port := range ports {
			got := map[string]bool{}
			c := listeners[fmt.Sprint(to, port)]
			for b := make([]byte, 16); ; {
				_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
				n, _, err := c.ReadFrom(b)
				if err != nil {
					break
				}
				got[string(b[:n])] = true
			}
			for from := range in {
				if want, by, _ := rules.Verdict(policy.Packet{Src: addrs[from], Dst: addrs[to], Protocol: 17, Port: uint16(port)}); got[from] != want {
					t.Errorf("%s: %s to %s, port %d: passes %t, and the rules say %t by %v", name, from, to, port, got[from], want, by)
				} else if want && from != to {
					passed++
				}
			}
		}
	}
	if passed == 0 || passed == 18 {
		t.Errorf("%s: %d of 18 flows pass: nothing is compared", name, passed)
	}
}

// packetWorld is world where mon is local, too.
func packetWorld(t *testing.T, name string) (policy.Rules, map[netip.Addr]string) {
	t.Helper()
	namespaces := map[string]map[string]string{"shop": {}, "ops": {"tier": "back"}}
	all := parsed(t, packetPolicies[name])
	var pods []policy.Pod
	at := map[netip.Addr]string{}
	for _, x := range []struct{ namespace, name, addr string }{{"shop", "web", "10.1.1.2"}, {"shop", "db", "10.1.1.3"}, {"ops", "mon", "10.1.3.2"}} {
		a := netip.MustParseAddr(x.addr)
		pods = append(pods, policy.Pod{Namespace: x.namespace, Name: x.name, Labels: map[string]string{"app": x.name}, Addrs: []netip.Addr{a},
			Ports: []policy.ContainerPort{{NamedPort: policy.NamedPort{Name: "main", Protocol: 17}, Number: 8080}}})
		at[a] = x.namespace + "/" + x.name
	}
	return policy.Compile(all, pods, func(g policy.Group) []policy.Member { return g.Members(namespaces, pods) }), at
}
