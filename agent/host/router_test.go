package host

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"edgemesh/agent/findings"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/nstest"
	"edgemesh/test/fair"
)

const (
	plcNode4, plc4 = "192.168.9.2", "192.168.9.50"
	plcNode6, plc6 = "2001:db8:9::2", "2001:db8:9::50"
	plcPort        = 502
)

// plant is a lab whose node has a second uplink, to a network of machines that the LAN must not reach. The LAN's host and
// the machine send to each other through the node.
type plant struct {
	*lab
	plc   nstest.Namespace
	state string // the state directory
	port  int    // of the last attack
}

// newPlant makes the namespaces; nothing of ours is set.
func newPlant(t *testing.T, prepare string) *plant {
	t.Helper()
	p := &plant{lab: newBareLab(t, prepare), state: t.TempDir(), port: plcPort}
	p.plc = p.namespace()
	p.wire("plc0", p.plc, "lan0")
	run(t, "ip addr add "+plcNode4+"/24 dev plc0\nip addr add "+plcNode6+"/64 dev plc0 nodad")
	p.in(p.plc, func() {
		run(t, "ip addr add "+plc4+"/24 dev lan0\nip addr add "+plc6+"/64 dev lan0 nodad\nip route add default via "+plcNode4+"\nip -6 route add default via "+plcNode6)
	})
	p.in(p.lan, func() {
		run(t, "ip route add 192.168.9.0/24 via "+nodeLAN4+"\nip -6 route add 2001:db8:9::/64 via "+nodeLAN6)
	})
	return p
}

// start starts an agent in place of the one before, on a host with nf_tables or without.
func (p *plant) start(tables bool) {
	p.host = New(Config{StateDir: p.state, Log: p.host.log})
	if !tables {
		p.host.refused = "no nf_tables"
	}
}

// ends are the machine, the LAN's host and the node's own address on the LAN, of one IP version.
type ends struct{ plc, lan, node string }

var plantEnds = map[string]ends{"IPv4": {plc4, lanHost4, nodeLAN4}, "IPv6": {plc6, lanHost6, nodeLAN6}}

// dropsBetween is a chain that drops what goes between uplinks: of nftables or of iptables.
func (p *plant) dropsBetween(tables bool, e ends, send func()) {
	p.t.Helper()
	if tables {
		p.droppedByGuard("between", send)
		return
	}
	save := "iptables-nft-save"
	if strings.Contains(e.plc, ":") {
		save = "ip6tables-nft-save"
	}
	p.dropped(save, "EDGEMESH-BETWEEN", send)
}

// closed fails unless nothing passes between the networks: no plain packet, and none that forges what the rule looks at, the
// answer of a connection.
func (p *plant) closed(tables bool, e ends) {
	t := p.t
	p.port++ // no answers to what was sent while the node was a router
	port := p.port
	machine, attacker := p.listen(p.plc, e.plc, port), p.listen(p.lan, e.lan, port)
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(send(attacker, "first", e.plc, port))
	must(send(machine, "first", e.lan, port))
	control := p.listen(p.node, e.node, 0) // the node itself reaches both, which answer
	for _, c := range []*net.UDPConn{p.listen(p.plc, e.plc, 0), p.listen(p.lan, e.lan, 0)} {
		at := c.LocalAddr().(*net.UDPAddr).AddrPort()
		must(send(control, "control", at.Addr().String(), int(at.Port())))
		from := p.receive(c, "control")
		must(send(c, "control's answer", from.Addr().String(), int(from.Port())))
		p.receive(control, "control's answer")
		c.Close()
	}
	p.nothing(machine, "from the LAN")
	p.nothing(attacker, "from the machines")
	p.dropsBetween(tables, e, func() { must(send(attacker, "plain", e.plc, port)) })
	p.dropsBetween(tables, e, func() { must(send(machine, "back", e.lan, port)) })
	// The node's own connections to both ends are tracked, and known as ESTABLISHED: an answer to one of them to another address.
	own := p.listen(p.node, e.node, port)
	must(send(own, "own", e.lan, port))
	p.receive(attacker, "own")
	must(send(attacker, "answer", e.node, port))
	p.receive(own, "answer")
	p.dropsBetween(tables, e, func() { must(send(attacker, "as an answer", e.plc, port)) })
	p.nothing(machine, "from the LAN")
	p.nothing(attacker, "from the machines")
	for _, c := range []*net.UDPConn{machine, attacker, own, control} {
		c.Close()
	}
}

// open fails unless the LAN's packets reach the machine, and answers come back.
func (p *plant) open(e ends) {
	p.t.Helper()
	machine, visitor := p.listen(p.plc, e.plc, plcPort), p.listen(p.lan, e.lan, plcPort)
	defer machine.Close()
	defer visitor.Close()
	if err := send(visitor, "through", e.plc, plcPort); err != nil {
		p.t.Fatal(err)
	}
	from := p.receive(machine, "through")
	if err := send(machine, "answer", from.Addr().String(), int(from.Port())); err != nil {
		p.t.Fatal(err)
	}
	p.receive(visitor, "answer")
}

// TestNoRouterBetweenUplinks: a node with two uplinks that did not forward before the agent forwards nothing from one to the
// other, however the LAN's host dresses its packets, and as long as the host is up. What the node publishes, containers of
// other programs, and hosts that shall route work.
func TestNoRouterBetweenUplinks(t *testing.T) {
	t.Parallel()
	noLAN := dual()
	noLAN.LAN = mesh.LAN{}
	for name, c := range map[string]struct {
		w      mesh.Host
		tables bool // else the host has no nf_tables
	}{
		"guard": {dual(), true}, "table": {noLAN, true}, "keep": {kept(), true}, "iptables": {noLAN, false}, "keep, iptables": {kept(), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlant(t, "")
			p.start(c.tables)
			var log strings.Builder
			p.host.log = slog.New(slog.NewTextHandler(&log, nil))
			mustSet(t, p.host, c.w)
			wantUnchanged(t, p.host, c.w)
			if n := strings.Count(log.String(), `uplinks="plc0 and up0"`) + strings.Count(log.String(), `uplinks="up0 and plc0"`); n != 1 || !strings.Contains(log.String(), "forward: all") {
				t.Errorf("logged %d times:\n%s", n, log.String())
			}
			p.says(c.w, "uplinks", "IPv4 and IPv6 between up0, plc0 is dropped")
			for _, e := range plantEnds {
				p.closed(c.tables, e)
			}
			p.published(plantEnds["IPv4"])
			p.containers(c.w)
			p.closed(c.tables, plantEnds["IPv4"]) // a program that made containers may have set forwarding, too
			// The agent ends, and another one starts: it finds what the first found.
			p.start(c.tables)
			wantUnchanged(t, p.host, c.w)
			all := c.w
			all.Forward.All = true
			mustSet(t, p.host, all)
			wantUnchanged(t, p.host, all)
			p.says(all, "")
			for _, e := range plantEnds {
				p.open(e)
			}
			mustSet(t, p.host, c.w)
			p.closed(c.tables, plantEnds["IPv6"])
			if err := p.host.Cleanup(context.Background()); err != nil {
				t.Fatal(err)
			}
			if left := run(t, "nft list ruleset\niptables-nft-save"); strings.Contains(left, "between") || strings.Contains(left, "BETWEEN") {
				t.Errorf("Cleanup left:\n%s", left)
			}
			if v := strings.TrimSpace(run(t, "sysctl -n net.ipv4.ip_forward")); v != "0" {
				t.Errorf("ip_forward is %s after Cleanup", v)
			}
		})
	}
}

// TestCLATIsNoUplink: a translator of the node's own IPv4 sends and receives through the uplinks. It is a TUN device with an address
// of RFC 7335; a VPN with another one is an uplink, and so is hardware, whatever a DHCP server gives it.
func TestCLATIsNoUplink(t *testing.T) {
	t.Parallel()
	p := newPlant(t, "")
	run(t, `
ip tuntap add dev clat0 mode tun
ip link set clat0 up
ip addr add 192.0.0.4/32 dev clat0
ip tuntap add dev vpn0 mode tun
ip link set vpn0 up
ip addr add 10.9.0.2/32 dev vpn0
ip addr add 192.0.0.3/29 dev plc0`)
	s, err := p.host.plan(dual())
	if err != nil {
		t.Fatal(err)
	}
	for i := range s.Each {
		names := s.Each[i].Uplinks.Names
		if slices.Contains(names, "clat0") || !slices.Contains(names, "vpn0") || !slices.Contains(names, "plc0") || !slices.Contains(names, "up0") {
			t.Errorf("uplinks %v, want up0, plc0 and vpn0", names)
		}
	}
}

// says fails unless these notes are all that is said of the host as a router, each by its ID and a part of its text.
func (p *plant) says(w mesh.Host, want ...string) {
	p.t.Helper()
	s, err := p.host.plan(w)
	got := p.host.checkRouter(w, s)
	if err != nil || len(got) != len(want)/2 {
		p.t.Fatalf("findings %+v (%v), want %q", got, err, want)
	}
	for i, f := range got {
		if f.ID != want[2*i] || f.Severity != findings.Note || !strings.Contains(f.Text, want[2*i+1]) {
			p.t.Errorf("finding %+v, want %q", f, want)
		}
	}
}

// published: the node's own translation from one uplink to the other passes.
func (p *plant) published(e ends) {
	p.t.Helper()
	const port = 5020
	run(p.t, fmt.Sprintf("iptables-nft -t nat -A PREROUTING -i up0 -d %s -p udp --dport %d -j DNAT --to-destination %s:%d", e.node, port, e.plc, plcPort))
	machine, visitor := p.listen(p.plc, e.plc, plcPort), p.listen(p.lan, e.lan, 0)
	defer machine.Close()
	defer visitor.Close()
	if err := send(visitor, "published", e.node, port); err != nil {
		p.t.Fatal(err)
	}
	from := p.receive(machine, "published")
	if err := send(machine, "its answer", from.Addr().String(), int(from.Port())); err != nil {
		p.t.Fatal(err)
	}
	if from := p.receive(visitor, "its answer"); from != netip.AddrPortFrom(netip.MustParseAddr(e.node), port) {
		p.t.Errorf("the answer is from %s", from)
	}
}

// containers: a bridge and a lone veth pair that another program made after us reach the machines.
func (p *plant) containers(w mesh.Host) {
	p.t.Helper()
	run(p.t, "ip link add docker0 type bridge\nip addr add 172.17.0.1/16 dev docker0\nip link set docker0 up\nsysctl -qw net.ipv4.ip_forward=1")
	for i, name := range []string{"vethc0", "vethc1"} {
		ns := p.namespace()
		p.wire(name, ns, "eth0")
		gateway := fmt.Sprintf("172.17.%d.1", i)
		addr := fmt.Sprintf("172.17.%d.2", i)
		if i == 0 {
			run(p.t, "ip link set "+name+" master docker0")
		} else {
			run(p.t, "ip addr add "+gateway+"/32 dev "+name+"\nip route add "+addr+" dev "+name)
		}
		p.in(ns, func() { run(p.t, "ip addr add "+addr+"/24 dev eth0\nip route add default via "+gateway) })
		mustSet(p.t, p.host, w)
		machine, container := p.listen(p.plc, plc4, plcPort), p.listen(ns, addr, 0)
		if err := send(container, "from "+name, plc4, plcPort); err != nil {
			p.t.Fatal(err)
		}
		from := p.receive(machine, "from "+name)
		if err := send(machine, "to "+name, from.Addr().String(), int(from.Port())); err != nil {
			p.t.Fatal(err)
		}
		p.receive(container, "to "+name)
		machine.Close()
	}
}

// TestRouterStaysOne: a host that forwarded before the agent, by a switch for all or for one interface, forwards what it did.
func TestRouterStaysOne(t *testing.T) {
	t.Parallel()
	t.Run("all", func(t *testing.T) {
		p := newPlant(t, "sysctl -qw net.ipv4.ip_forward=1")
		p.start(true)
		mustSet(t, p.host, dual())
		p.open(plantEnds["IPv4"])
		p.closed(true, plantEnds["IPv6"])
		p.says(dual(), "router", "forwards IPv4 between up0, plc0", "uplinks", "IPv6 between up0, plc0 is dropped")
		run(t, "sysctl -qw net.ipv4.ip_forward=0") // by another program, while the agent runs
		mustSet(t, p.host, dual())
		p.start(true)
		mustSet(t, p.host, dual())
		p.open(plantEnds["IPv4"])
	})
	t.Run("one interface", func(t *testing.T) {
		p := newPlant(t, "")
		run(t, "sysctl -qw net.ipv4.conf.up0.forwarding=1 net.ipv4.conf.plc0.forwarding=0")
		p.start(true)
		mustSet(t, p.host, dual())
		p.open(plantEnds["IPv4"])
		p.closed(true, plantEnds["IPv6"])
	})
}

// TestLaterUplinks: a VPN that comes up later is an uplink; a TAP device, a virtual machine's, is not.
func TestLaterUplinks(t *testing.T) {
	t.Parallel()
	p := newPlant(t, "")
	p.start(true)
	mustSet(t, p.host, dual())
	run(t, "ip tuntap add dev vpn0 mode tun\nip tuntap add dev vm0 mode tap")
	mustSet(t, p.host, dual())
	wantUnchanged(t, p.host, dual())
	set := run(t, "nft list set inet edgemesh uplinks")
	wantContains(t, "the set", set, `"vpn0"`, `"up0"`, `"plc0"`)
	for _, name := range []string{`"vm0"`, BridgeName, TUNName} {
		if strings.Contains(set, name) {
			t.Errorf("%s is taken for an uplink:\n%s", name, set)
		}
	}
}

// TestContainersOfOneVersion: a bridge and its containers that were there before the agent, where IPv4 was forwarded and IPv6
// was not, are no uplinks for IPv6.
func TestContainersOfOneVersion(t *testing.T) {
	t.Parallel()
	p := newPlant(t, "sysctl -qw net.ipv4.ip_forward=1")
	run(t, "ip link add docker0 type bridge\nip link set docker0 up\nip link add vethc0 type veth peer name eth0c\nip link set vethc0 master docker0")
	p.start(true)
	mustSet(t, p.host, dual())
	set := run(t, "nft list set inet edgemesh uplinks")
	wantContains(t, "the set", set, `"up0"`, `"plc0"`)
	if strings.Contains(set, "docker0") || strings.Contains(set, "vethc0") {
		t.Errorf("a container is taken for an uplink:\n%s", set)
	}
}

// TestSecondUplinkIsRefused: where nf_tables refuses the rules for a second uplink that comes later, iptables gets them.
func TestSecondUplinkIsRefused(t *testing.T) {
	t.Parallel()
	l := newBareLab(t, "")
	w := dual()
	w.LAN = mesh.LAN{}
	mustSet(t, l.host, w)
	run(t, "nft delete table inet edgemesh")
	end := ownTable(t)
	run(t, "ip tuntap add dev vpn0 mode tun")
	if _, err := l.host.Set(t.Context(), w); err == nil {
		t.Error("the kernel did not refuse")
	}
	end()
	mustSet(t, l.host, w)
	wantUnchanged(t, l.host, w)
	wantContains(t, "iptables", run(t, "iptables-nft-save -t mangle"), "-i up0 -g EDGEMESH-BETWEEN", "-i vpn0 -g EDGEMESH-BETWEEN")
}

// ownTable has another program make our table, which then refuses all others until end.
func ownTable(t *testing.T) (end func()) {
	owner := exec.Command("nft", "-i") // a table with an owner refuses all others, the kernel's own way to say no
	in, err := owner.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(in, "add table inet edgemesh { flags owner; }")
	fair.Eventually(t, deadline, "the table", fair.True(func() bool { return run(t, "nft list tables inet") != "" }))
	return func() {
		in.Close()
		if err := owner.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTableIsRefusedLater: while the kernel refuses our table, the rest is repaired, and iptables drops what would leave in clear.
func TestTableIsRefusedLater(t *testing.T) {
	t.Parallel()
	l := newBareLab(t, "")
	w := dual()
	w.LAN = mesh.LAN{}
	mustSet(t, l.host, w)
	run(t, "nft delete table inet edgemesh")
	end := ownTable(t)
	run(t, "ip link set edgemesh-br down\nip route flush table 5210")
	if _, err := l.host.Set(t.Context(), w); err == nil {
		t.Error("the kernel did not refuse")
	}
	wantContains(t, "bridge", run(t, "ip link show edgemesh-br"), ",UP")
	wantContains(t, "table", run(t, "ip route show table 5210"), "10.244.0.0/16 dev edgemesh-tun")
	wantContains(t, "iptables", run(t, "iptables-nft-save -t mangle"), "-j EDGEMESH-OUTSIDE")
	end()
	mustSet(t, l.host, w)
	wantUnchanged(t, l.host, w)
}
