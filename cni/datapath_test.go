package main_test

import (
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/internal/cni/conf"
)

func inNS(t *testing.T, netns ns.NetNS, command ...string) string {
	t.Helper()
	var out []byte
	err := netns.Do(func(ns.NetNS) (err error) {
		out, err = exec.Command(command[0], command[1:]...).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
	}
	return string(out)
}

// Pods of every kind reach their gateway and each other immediately, with full
// packets; IPv6 addresses are usable without waiting for DAD.
func TestConnectivity(t *testing.T) {
	t.Parallel()
	for name, blocks := range map[string][]string{
		"IPv4": {"10.244.1.0/24"}, "IPv6": {"fd00:1::/64"}, "dual": {"10.244.1.0/24", "fd00:1::/64"},
		"IPv6 first": {"fd00:1::/112", "10.244.1.0/26"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, blocks...)
			a, b := n.add("a"), n.add("b")
			if len(a.addrs()) != len(blocks) {
				t.Fatalf("addresses %v of %v", a.addrs(), blocks)
			}
			for i, to := range b.addrs() {
				gw := a.result.IPs[i].Gateway.String()
				for _, dst := range []string{to, gw} {
					size := "1472"
					if strings.Contains(dst, ":") {
						size = "1452"
					}
					if err := answers(a.netns, dst, "-M", "do", "-s", size); err != nil {
						t.Error(err)
					}
				}
			}
			if out := inNS(t, a.netns, "ip", "-6", "addr", "show", "tentative"); strings.Contains(out, "inet6") {
				t.Errorf("tentative addresses: %s", out)
			}
			for _, p := range []*pod{a, b} {
				if err := p.check(); err != nil {
					t.Error(err)
				}
			}
			// MAC addresses come from the pods' addresses and the bridge's name.
			ip := a.result.IPs[0].Address.IP
			if name == "IPv6 first" {
				ip = a.result.IPs[1].Address.IP // whatever the order, IPv4's
			}
			if want := conf.PodMAC(addrOf(ip)).String(); a.result.Interfaces[2].Mac != want {
				t.Errorf("MAC %s of %s, want %s", a.result.Interfaces[2].Mac, ip, want)
			}
			if got := a.result.Interfaces[0].Mac; got != conf.BridgeMAC("edgemesh-br").String() {
				t.Errorf("bridge's MAC %s", got)
			}
		})
	}
}

// Where the host forwards between its pods, new ones are kept apart from the start: their frames reach the host alone, which answers for them.
func TestRouted(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24", "fd00:1::/64")
	n.add("before").del() // makes the bridge
	for _, s := range []string{"ipv4/conf/edgemesh-br/proxy_arp_pvlan=1", "ipv4/ip_forward=1", "ipv4/neigh/edgemesh-br/proxy_delay=0", "ipv6/conf/edgemesh-br/proxy_ndp=1",
		"ipv6/conf/all/forwarding=1", "ipv6/neigh/edgemesh-br/proxy_delay=0", "bridge/bridge-nf-call-iptables=0", "bridge/bridge-nf-call-ip6tables=0"} {
		inNS(t, n.netns, "sysctl", "-qw", "net/"+s)
	}
	a, b := n.add("a"), n.add("b")
	for _, dst := range b.addrs() {
		if err := answers(a.netns, dst); err != nil {
			t.Error(err)
		}
		if out := inNS(t, a.netns, "ip", "neigh", "show", dst); !strings.Contains(out, conf.BridgeMAC("edgemesh-br").String()) {
			t.Errorf("not through the host: %s", out)
		}
	}
	if out := inNS(t, n.netns, "bridge", "-d", "link", "show"); strings.Count(out, "isolated on") != 2 {
		t.Errorf("ports: %s", out)
	}
	inNS(t, n.netns, "iptables", "-A", "FORWARD", "-d", b.addrs()[0], "-j", "DROP")
	if ping(a.netns, b.addrs()[0]) == nil {
		t.Error("a packet passed a rule that drops it")
	}
	if err := a.check(); err != nil {
		t.Error(err)
	}
}

// A pod reaches itself through a Service's address.
func TestHairpin(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24")
	p := n.add("a")
	inNS(t, n.netns, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	inNS(t, n.netns, "iptables", "-t", "nat", "-A", "PREROUTING", "-d", "10.96.0.1", "-j", "DNAT", "--to", p.addrs()[0])
	inNS(t, n.netns, "iptables", "-t", "nat", "-A", "POSTROUTING", "-s", p.addrs()[0], "-d", p.addrs()[0], "-j", "MASQUERADE")
	if err := answers(p.netns, "10.96.0.1"); err != nil {
		t.Error(err)
	}
}

// A pod that takes a neighbour's address, or talks ARP in its name, is not
// heard; the neighbour and its caches stay right.
func TestSpoofing(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24", "fd00:1::/64")
	victim, evil, third := n.add("victim"), n.add("evil"), n.add("third")
	for _, a := range victim.addrs() {
		if err := answers(third.netns, a); err != nil {
			t.Fatal(err)
		}
	}
	v4, v6 := victim.addrs()[0], victim.addrs()[1]
	// The kernel resolves an unknown neighbour in the name of the first packet that
	// waits for it, so a spoofed one would hold up those after it.
	for _, dst := range third.addrs() {
		if err := answers(evil.netns, dst); err != nil {
			t.Fatal(err)
		}
	}
	inNS(t, evil.netns, "ip", "addr", "add", v4+"/32", "dev", "eth0")
	inNS(t, evil.netns, "ip", "addr", "add", v6+"/128", "dev", "eth0", "nodad")
	for i, dst := range third.addrs() {
		if ping(evil.netns, dst, "-I", victim.addrs()[i]) == nil {
			t.Errorf("the spoofed source %s got an answer", victim.addrs()[i])
		}
		if err := answers(evil.netns, dst, "-I", evil.addrs()[i]); err != nil {
			t.Errorf("its own source: %v", err)
		}
	}
	// Gratuitous ARP for the victim's address.
	evilMAC, ip := conf.PodMAC(addrOf(net.ParseIP(evil.addrs()[0]))), []byte(net.ParseIP(v4).To4())
	all := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	frame := slices.Concat(all, evilMAC, []byte{8, 6}, []byte{0, 1, 8, 0, 6, 4, 0, 2}, evilMAC, ip, all, ip)
	if err := evil.netns.Do(func(ns.NetNS) error { return sendRaw("eth0", frame) }); err != nil {
		t.Fatal(err)
	}
	for _, a := range victim.addrs() {
		if err := answers(third.netns, a); err != nil {
			t.Errorf("the victim after the attack: %v", err)
		}
	}
	mac := conf.PodMAC(addrOf(net.ParseIP(v4))).String()
	if out := inNS(t, third.netns, "ip", "neigh", "show", v4); !strings.Contains(out, mac) {
		t.Errorf("the neighbour's cache says %q, want %s", out, mac)
	}
}

func sendRaw(dev string, frame []byte) error {
	l, err := netlink.LinkByName(dev)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for range 3 {
		if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index}); err != nil {
			return err
		}
	}
	return nil
}

// The bridge is repaired, and created again with the pods that were on it.
func TestBridgeRepair(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24", "fd00:1::/64")
	a := n.add("a")
	inNS(t, n.netns, "ip", "link", "set", "edgemesh-br", "down")
	inNS(t, n.netns, "ip", "link", "set", "edgemesh-br", "address", "02:00:00:00:00:09")
	inNS(t, n.netns, "ip", "addr", "flush", "dev", "edgemesh-br")
	b := n.add("b")
	for _, addr := range b.addrs() {
		if err := answers(a.netns, addr); err != nil {
			t.Error(err)
		}
	}
	inNS(t, n.netns, "ip", "link", "del", "edgemesh-br")
	c := n.add("c")
	for _, p := range []*pod{a, b} {
		for i, addr := range c.addrs() {
			for _, dst := range []string{addr, c.result.IPs[i].Gateway.String()} {
				if err := answers(p.netns, dst); err != nil {
					t.Errorf("from %s: %v", p.name, err)
				}
			}
		}
		if err := p.check(); err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
	}
	// A bridge that the agent has made is left as it is.
	n2 := newNode(t, "10.244.2.0/24")
	inNS(t, n2.netns, "ip", "link", "add", "edgemesh-br", "type", "bridge")
	inNS(t, n2.netns, "ip", "link", "set", "edgemesh-br", "mtu", "1400")
	n2.add("a")
	if out := inNS(t, n2.netns, "ip", "link", "show", "edgemesh-br"); !strings.Contains(out, "mtu 1400") {
		t.Errorf("the plugin changed the bridge's MTU: %s", out)
	}
	inNS(t, n2.netns, "ip", "link", "add", "fake-br", "type", "veth", "peer", "name", "fake-peer")
	n2.conf["bridge"] = "fake-br"
	_, err := n2.tryAdd("b", nil)
	wantCode(t, err, 999, "fake-br", "not a bridge")
	if len(n2.used()) != 1 {
		t.Errorf("a failed ADD left addresses: %v", n2.used())
	}
}

func TestPromiscuous(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24")
	n.conf["promiscMode"] = true
	p := n.add("a")
	if out := inNS(t, n.netns, "ip", "-d", "link", "show", "edgemesh-br"); !strings.Contains(out, "PROMISC") {
		t.Errorf("bridge is not promiscuous: %s", out)
	}
	if err := answers(p.netns, "10.244.1.1"); err != nil {
		t.Error(err)
	}
}

// Neighbours need not learn a pod's MAC again when it comes back.
func TestNeighbourCaches(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24", "fd00:1::/64")
	a, b := n.add("a"), n.add("b")
	for i, addr := range b.addrs() {
		dst := b.result.IPs[i].Address.IP.String()
		inNS(t, a.netns, "ip", "neigh", "replace", dst, "lladdr", b.result.Interfaces[2].Mac, "dev", "eth0", "nud", "permanent")
		if err := answers(a.netns, addr); err != nil {
			t.Fatal(err)
		}
	}
	b.del()
	b = n.add("b")
	for _, addr := range b.addrs() {
		if err := answers(a.netns, addr); err != nil {
			t.Error(err)
		}
	}
}

// Another network with the pods' addresses is found before the first pod, and
// explained; running pods are not punished for one that comes later.
func TestOverlap(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		setup []string
		says  []string
		fine  bool
	}{
		"docker network":   {setup: []string{"ip link add docker0 type bridge", "ip addr add 10.244.1.1/24 dev docker0"}, says: []string{"docker0 has address 10.244.1.1/24", "daemon.json"}},
		"former plugin":    {setup: []string{"ip link add cni0 type bridge", "ip addr add 10.244.1.1/24 dev cni0"}, says: []string{"cni0", "another network plugin"}},
		"route":            {setup: []string{"ip link add up0 type bridge", "ip link set up0 up", "ip route add 10.244.1.128/25 dev up0"}, says: []string{"route 10.244.1.128/25 on interface up0"}},
		"IPv6":             {setup: []string{"ip link add up0 type bridge", "ip addr add fd00:1::99/64 dev up0 nodad"}, says: []string{"fd00:1::99"}},
		"larger LAN":       {setup: []string{"ip link add up0 type bridge", "ip link set up0 up", "ip addr add 10.0.0.5/8 dev up0"}, fine: true},
		"docker elsewhere": {setup: []string{"ip link add docker0 type bridge", "ip link set docker0 up", "ip addr add 172.17.0.1/16 dev docker0"}, fine: true},
		"default route":    {setup: []string{"ip link add up0 type bridge", "ip link set up0 up", "ip addr add 192.168.1.5/24 dev up0", "ip route add default via 192.168.1.1"}, fine: true},
		"our own bridge and TUN": {setup: []string{"ip link add edgemesh-br type bridge", "ip addr add 10.244.1.1/24 dev edgemesh-br",
			"ip link add edgemesh-tun type bridge", "ip addr add 10.244.1.1/32 dev edgemesh-tun", "ip link set edgemesh-tun up"}, fine: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "10.244.1.0/24", "fd00:1::/64")
			for _, s := range c.setup {
				inNS(t, n.netns, strings.Fields(s)...)
			}
			_, status := n.call("STATUS", "", "", "", n.netconf(nil))
			_, err := n.tryAdd("a", nil)
			if c.fine {
				if status != nil || err != nil {
					t.Fatalf("STATUS: %v; ADD: %v", status, err)
				}
				return
			}
			wantCode(t, status, 50, c.says...)
			wantCode(t, err, 103, c.says...)
		})
	}
	n := newNode(t, "10.244.1.0/24")
	n.add("a")
	inNS(t, n.netns, "ip", "link", "add", "docker0", "type", "bridge")
	inNS(t, n.netns, "ip", "addr", "add", "10.244.1.200/24", "dev", "docker0")
	n.add("b")
}

// The host end is silent on its own, whatever becomes of the bridge.
func TestStaleVeth(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.244.1.0/24", "fd00:1::/64")
	p := n.add("a")
	inNS(t, n.netns, "ip", "link", "del", "edgemesh-br")
	host := p.result.Interfaces[1].Name
	if out := inNS(t, n.netns, "ip", "addr", "show", "dev", host); strings.Contains(out, "inet") {
		t.Errorf("the host end has an address: %s", out)
	}
	if out := inNS(t, n.netns, "ip", "link", "show", "dev", host); !strings.Contains(out, "edgemesh pod 10.244.1.2,fd00:1::2 eth0 "+p.id) {
		t.Errorf("the host end does not say whose it is: %s", out)
	}
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
