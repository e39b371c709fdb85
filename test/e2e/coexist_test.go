package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// docker is what dockerd 27 makes of an idle host: docker0, its chains, and a FORWARD
// that drops. The container is the test's.
var docker = []string{ //nolint:gochecknoglobals // a constant
	"ip link add docker0 type bridge",
	"ip addr add 172.17.0.1/16 dev docker0",
	"ip link set docker0 up",
	"sysctl -qw net.ipv4.ip_forward=1",
	"iptables -t nat -N DOCKER",
	"iptables -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
	"iptables -t nat -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER",
	"iptables -t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
	"iptables -t nat -A DOCKER -i docker0 -j RETURN",
	"iptables -P FORWARD DROP",
	"for c in DOCKER DOCKER-ISOLATION-STAGE-1 DOCKER-ISOLATION-STAGE-2 DOCKER-USER; do iptables -N $c; done",
	"iptables -A FORWARD -j DOCKER-USER",
	"iptables -A FORWARD -j DOCKER-ISOLATION-STAGE-1",
	"iptables -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
	"iptables -A FORWARD -o docker0 -j DOCKER",
	"iptables -A FORWARD -i docker0 ! -o docker0 -j ACCEPT",
	"iptables -A FORWARD -i docker0 -o docker0 -j ACCEPT",
	"iptables -A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2",
	"iptables -A DOCKER-ISOLATION-STAGE-1 -j RETURN",
	"iptables -A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP",
	"iptables -A DOCKER-ISOLATION-STAGE-2 -j RETURN",
	"iptables -A DOCKER-USER -j RETURN",
}

// world is a host with something on it before the agent comes.
type world struct {
	name    string
	options lab.NodeOptions
	prepare func(t *testing.T, n *lab.Node)
	lan     map[string]any                                 // of the agent's configuration
	path    string                                         // between the two nodes of the LAN
	short   bool                                           // part of the short form, too
	again   func(t *testing.T, n *lab.Node, from *lab.Pod) // what it does meanwhile
	noIPv6  bool
	proxied bool // it has kube-proxy's chains
	rejects bool // FORWARD ends with a rule for everything: engines go before it
}

func script(lines ...string) func(*testing.T, *lab.Node) {
	return func(t *testing.T, n *lab.Node) { ok(t, n.Script(lines...)) }
}

func worlds() []world {
	vxlan := map[string]any{"native": false}
	return []world{
		{name: "docker", prepare: script(docker...), path: "native", short: true},
		{name: "docker-vxlan", prepare: script(docker...), lan: vxlan, path: "vxlan"},
		{name: "ufw", prepare: ufw, path: "native"},
		{
			name:    "firewalld",
			prepare: firewalld,
			path:    "native",
			again:   func(t *testing.T, n *lab.Node, _ *lab.Pod) { ok(t, firewallCmd(t, n, "--reload")) },
		},
		{name: "firewalld-vxlan", prepare: firewalld, lan: vxlan, path: "vxlan"},
		{
			name: "reject-last",
			prepare: script(
				"iptables -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
				"iptables -A FORWARD -i lo -j ACCEPT",
				"iptables -N FORWARD_ZONES",
				"iptables -A FORWARD -j FORWARD_ZONES",
				"iptables -A FORWARD -m conntrack --ctstate INVALID -j DROP",
				"iptables -A FORWARD -j REJECT --reject-with icmp-host-prohibited"),
			path:    "native",
			rejects: true,
		},
		{
			name: "conntrack-zones",
			prepare: script(append(docker, "iptables -t raw -A PREROUTING -i docker0 -j CT --zone-orig 7",
				"iptables -t raw -A PREROUTING -i eth1 -j CT --zone 8")...),
			path: "native",
		},
		{
			name: "policy-routing",
			prepare: script(
				"ip route add default via 192.168.1.1 dev eth0 table 100",
				"ip rule add pref 5200 from 192.168.1.10 lookup 100",
				"ip rule add pref 5210 fwmark 0x1 lookup 100",
				"ip rule add pref 5205 to 203.0.113.0/24 lookup 100",
				"ip rule add pref 100 fwmark 0x2/0x2 lookup 100",
				"sysctl -qw net.ipv4.conf.all.rp_filter=1"),
			path: "native",
		},
		{
			name: "ipv6-off",
			prepare: script(
				"sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1"),
			path:   "native",
			noIPv6: true,
		},
		{name: "edgemesh", prepare: edgeMesh, path: "native", short: true, again: edgeMeshAgain},
		{name: "nft-only", options: lab.NodeOptions{Iptables: "nft"}, prepare: script(docker...), path: "native"},
		{name: "legacy-only", options: lab.NodeOptions{Iptables: "legacy"}, prepare: script(docker...), path: "native"},
	}
}

// edgeMeshDevices are those of KubeEdge's EdgeMesh v1.17, a bridge in place of the dummy, which not every kernel has.
func edgeMeshDevices() []string {
	return []string{
		"ip link add edgemesh0 address 02:00:00:00:60:16 type bridge", "ip addr add 169.254.96.16/32 dev edgemesh0", "ip link set edgemesh0 up",
		"ip tuntap add dev edge_tun0 mode tun", "ip link set edge_tun0 addrgenmode none up",
	}
}

// edgeMeshService is a ClusterIP whose connections EdgeMesh proxies.
const edgeMeshService = "10.96.0.20"

// edgeMesh is what EdgeMesh v1.17 has on an edge: its devices, the chains of its user-space proxy, and its ports (DNS, SOCKS5,
// the tunnel's TCP port and the limit of its resource manager).
func edgeMesh(t *testing.T, n *lab.Node) {
	ok(t, n.Script(edgeMeshDevices()...))
	ok(t, n.Script(
		"for c in KUBE-PORTALS-CONTAINER KUBE-PORTALS-HOST KUBE-NODEPORT-CONTAINER KUBE-NODEPORT-HOST; do iptables -w -t nat -N $c; done",
		"iptables -w -N KUBE-NODEPORT-NON-LOCAL",
		"iptables -w -t nat -A PREROUTING -j KUBE-PORTALS-CONTAINER",
		"iptables -w -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j KUBE-NODEPORT-CONTAINER",
		"iptables -w -t nat -A OUTPUT -j KUBE-PORTALS-HOST",
		"iptables -w -t nat -A OUTPUT -m addrtype --dst-type LOCAL -j KUBE-NODEPORT-HOST",
		"iptables -w -A INPUT -j KUBE-NODEPORT-NON-LOCAL",
		fmt.Sprintf("iptables -w -t nat -A KUBE-PORTALS-CONTAINER -d %s/32 -p tcp --dport %d -j DNAT --to-destination 169.254.96.16:10800", edgeMeshService, lab.ServePort)))
	for _, port := range []string{"53", "9999", "10800", "20006"} {
		p, err := n.StartTool("edgemesh-"+port, "serve", "--name", "edgemesh", "--port", port)
		ok(t, err)
		t.Cleanup(p.Kill)
	}
}

// edgeMeshAgain restarts it, now beside an agent that runs, and asks its Service from a pod.
func edgeMeshAgain(t *testing.T, n *lab.Node, from *lab.Pod) {
	answers := func() error {
		reply, err := from.Get(t.Context(), netip.MustParseAddr(edgeMeshService), time.Second)
		if err == nil && (reply.Name != "edgemesh" || reply.Client != from.IP4()) {
			err = fmt.Errorf("%q answered %v", reply.Name, reply.Client)
		}
		return err
	}
	ok(t, lab.Until(within(t, 5*time.Second), 50*time.Millisecond, answers))
	ok(t, n.Script(append([]string{"ip link del edgemesh0", "ip link del edge_tun0"}, edgeMeshDevices()...)...))
	ok(t, lab.Until(within(t, 5*time.Second), 50*time.Millisecond, answers))
}

// ufw enables the real thing, with a copy of its configuration.
func ufw(t *testing.T, n *lab.Node) {
	if _, err := exec.LookPath("ufw"); err != nil {
		t.Skip("NOT RUN: ufw is not installed (apt-get install ufw)")
	}
	ok(t, n.Script("cp -a /etc/ufw "+n.Dir+"/ufw", "unshare -m sh -ec 'mount --bind "+n.Dir+`/ufw /etc/ufw
		ufw --force enable >/dev/null
		ufw allow 4001 >/dev/null
		ufw allow proto udp to any port 5210:5211 >/dev/null
		ufw allow in on edgemesh-br >/dev/null'`))
}

// TestCoexist: pods reach each other through native or VXLAN paths and the tunnel on a
// host that has a network of its own; that network stays as it is, during and after.
func TestCoexist(t *testing.T) {
	tier.All(t)
	beside(t)
	for _, w := range append(worlds(), literalWorlds()...) {
		t.Run(w.name, func(t *testing.T) {
			if !w.short {
				tier.Long(t)
			}
			beside(t)
			coexist(t, w)
		})
	}
}

func coexist(t *testing.T, w world) {
	l := newLab(t)
	relay(t, l, "relay")
	s := site(t, l, "site", lab.EIM)
	n1, n2 := node(t, s, "edge-1", w.options), node(t, s, "edge-2", lab.NodeOptions{})
	far := cloud(t, l, "far", lab.NodeOptions{})
	w.prepare(t, n1)
	if w.lan != nil {
		n1.Config.LAN = w.lan
	}
	box := container(t, n1)
	before := hostState(t, n1)
	startAll(t, l)
	pod1, pod2, pod3 := pod(t, n1, "one"), pod(t, n2, "two"), pod(t, far, "three")
	talk := func() {
		t.Helper()
		for _, to := range []*lab.Pod{pod2, pod3} {
			for _, p := range [][2]*lab.Pod{{pod1, to}, {to, pod1}} {
				addrs := pairs(p[0], p[1])
				if w.noIPv6 {
					addrs = addrs[:1]
				}
				for _, a := range addrs {
					curl(t, p[0].NS, p[1], a[1], a[0], 5*time.Second)
				}
			}
			curl(t, n1.NS, to, to.IP4(), gateway(pod1.IP4()), 5*time.Second)
		}
	}
	talk()
	_, err := n1.WaitPath(within(t, 30*time.Second), n2, w.path)
	ok(t, err)
	talk()
	if w.again != nil {
		w.again(t, n1, pod1)
		ok(t, lab.Until(within(t, 15*time.Second), 100*time.Millisecond, func() error {
			return tryCurl(t.Context(), pod1.NS, pod2, pod2.IP4(), pod1.IP4(), time.Second)
		}))
		talk()
	}
	if !w.proxied {
		t.Run("Services", func(t *testing.T) { services(t, n1, pod1, pod2, pod3) })
	}
	t.Run("NetworkPolicy", func(t *testing.T) { policies(t, n1, w.rejects, pod1, pod2, pod3) })
	for _, x := range [][2]*lab.Node{{n1, n2}, {n2, n1}} { // no false alarm
		p, err := x[0].WaitPath(within(t, 5*time.Second), x[1], w.path)
		ok(t, err)
		tunnel6 := !w.noIPv6 && strings.Contains(p.Reason, "IPv6 pods: through the tunnel")
		if p.Proof != "forwarded" || strings.Contains(p.Reason, "pods' packets are dropped") || tunnel6 {
			t.Errorf("%s: path %s, proof %q: %s", x[0].Name, p.Path, p.Proof, p.Reason)
		}
		st, err := x[0].Status(t.Context())
		if ok(t, err); slices.ContainsFunc(st.Findings, func(f lab.Problem) bool {
			return slices.Contains([]string{"lan-forward", "forwarding", "iptables", "nftables"}, f.Check)
		}) {
			t.Errorf("%s: %+v", x[0].Name, st.Findings)
		}
	}
	if box != nil {
		ok(t, box.Ping(t.Context(), lab.InternetAddr, 2*time.Second))
	}
	for _, p := range []*lab.Pod{pod1} {
		ok(t, p.Delete(t.Context()))
	}
	ok(t, n1.Agent.Stop())
	if _, stderr, err := n1.AgentCommand(t.Context(), "cleanup", "--config", n1.ConfigFile()); err != nil {
		t.Errorf("cleanup: %v %s", err, stderr)
	}
	sameState(t, before, hostState(t, n1))
	if box != nil {
		ok(t, box.Ping(t.Context(), lab.InternetAddr, 2*time.Second))
	}
}

// container puts one on docker0, if there is one.
func container(t *testing.T, n *lab.Node) *lab.NS {
	if _, err := n.Run(t.Context(), "ip", "link", "show", "docker0"); err != nil {
		return nil
	}
	box, err := n.NewNS("box")
	ok(t, err)
	ok(t, n.Script("ip link add veth-box type veth peer name eth0 netns "+box.Full,
		"ip link set veth-box master docker0 up"))
	ok(t, box.Script("ip addr add 172.17.0.2/16 dev eth0", "ip link set eth0 up",
		"ip route add default via 172.17.0.1"))
	return box
}

// services are rules as kube-proxy writes them, iptables and nftables: a ClusterIP for
// a pod elsewhere, with and without masquerading, from a pod and from the node.
func services(t *testing.T, n *lab.Node, from *lab.Pod, to ...*lab.Pod) {
	const kept, masqueraded, nft = "10.96.0.10", "10.96.0.11", "10.96.0.12"
	for _, p := range to {
		target := fmt.Sprintf("%s:%d", p.IP4(), lab.ServePort)
		ok(t, n.Script(
			"iptables -w -t nat -N KUBE-SERVICES",
			"iptables -w -t nat -N KUBE-MARK-MASQ",
			"iptables -w -t nat -N KUBE-POSTROUTING",
			"iptables -w -N KUBE-FORWARD",
			"iptables -w -t nat -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000",
			"iptables -w -t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
			"iptables -w -t nat -A KUBE-POSTROUTING -j MARK --xor-mark 0x4000",
			"iptables -w -t nat -A KUBE-POSTROUTING -j MASQUERADE --random-fully",
			"iptables -w -t nat -A KUBE-SERVICES -d "+masqueraded+" -j KUBE-MARK-MASQ",
			"iptables -w -t nat -A KUBE-SERVICES -p tcp -d "+kept+" -j DNAT --to-destination "+target,
			"iptables -w -t nat -A KUBE-SERVICES -p tcp -d "+masqueraded+" -j DNAT --to-destination "+target,
			"for c in PREROUTING OUTPUT; do iptables -w -t nat -I $c -j KUBE-SERVICES; done",
			"iptables -w -t nat -I POSTROUTING -j KUBE-POSTROUTING",
			"iptables -w -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP",
			"iptables -w -A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
			"iptables -w -I FORWARD -j KUBE-FORWARD",
			"nft add table ip kube-proxy",
			"nft 'add chain ip kube-proxy pre { type nat hook prerouting priority dstnat; }'",
			"nft add rule ip kube-proxy pre ip daddr "+nft+" tcp dport "+fmt.Sprint(lab.ServePort)+" dnat to "+target))
		// kube-proxy is first now, and masquerades; that ours comes before does not hang on
		// the place in POSTROUTING.
		for vip, source := range map[string]netip.Addr{
			kept:        from.IP4(),
			masqueraded: gateway(from.IP4()),
			nft:         from.IP4(),
		} {
			curl(t, from.NS, p, netip.MustParseAddr(vip), source, 5*time.Second)
		}
		curl(t, n.NS, p, netip.MustParseAddr(kept), gateway(from.IP4()), 5*time.Second)
		ok(t, n.Script(
			"nft delete table ip kube-proxy",
			"for c in PREROUTING OUTPUT; do iptables -w -t nat -D $c -j KUBE-SERVICES; done",
			"iptables -w -t nat -D POSTROUTING -j KUBE-POSTROUTING",
			"iptables -w -D FORWARD -j KUBE-FORWARD",
			"iptables -w -F KUBE-FORWARD",
			"iptables -w -X KUBE-FORWARD",
			"for c in KUBE-SERVICES KUBE-POSTROUTING KUBE-MARK-MASQ; do iptables -w -t nat -F $c; done",
			"for c in KUBE-SERVICES KUBE-POSTROUTING KUBE-MARK-MASQ; do iptables -w -t nat -X $c; done"))
	}
}

// policies are drop rules per pair of pods, as engines install them, in and out,
// iptables (at the chain's end) and nftables: they hold on every path, and let others pass.
func policies(t *testing.T, n *lab.Node, first bool, mine *lab.Pod, others ...*lab.Pod) {
	add := "iptables -w -A FORWARD"
	if first {
		add = "iptables -w -I FORWARD"
	}
	for _, other := range others {
		for _, flow := range [][2]*lab.Pod{{mine, other}, {other, mine}} {
			src, dst := flow[0].IP4().String(), flow[1].IP4().String()
			for _, engine := range []struct {
				install []string
				remove  string
				behind  bool // at the chain's end, where the agent's rule for it is
			}{
				{
					install: []string{add + " -s " + src + " -d " + dst + " -j DROP"},
					remove:  "iptables -w -D FORWARD -s " + src + " -d " + dst + " -j DROP",
					behind:  !first,
				},
				{
					install: []string{
						"nft add table inet netpol",
						"nft 'add chain inet netpol forward { type filter hook forward priority 0; }'",
						"nft add rule inet netpol forward ip saddr " + src + " ip daddr " + dst + " drop",
					},
					remove: "nft delete table inet netpol",
				},
			} {
				ok(t, n.Script(engine.install...))
				if engine.behind {
					ok(t, lab.Until(within(t, 15*time.Second), 50*time.Millisecond, func() error {
						if _, err := flow[0].Get(t.Context(), flow[1].IP4(), 700*time.Millisecond); err == nil {
							return errors.New("a policy's rule stands behind the agent's, which accepts")
						}
						return nil
					}))
				}
				noAnswer(t, flow[0].NS, flow[1].IP4(), engine.install[len(engine.install)-1])
				ok(t, n.Script(engine.remove))
				curl(t, flow[0].NS, flow[1], flow[1].IP4(), flow[0].IP4(), 5*time.Second)
			}
		}
	}
}
