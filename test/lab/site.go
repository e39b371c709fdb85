package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// NAT is the behaviour of a site's router.
type NAT string

const (
	// EIM keeps the port (endpoint-independent mapping as long as ports do not
	// clash) and silently drops unsolicited packets: most home routers.
	EIM NAT = "eim"
	// EIMReject does the same, but answers RST and ICMP errors.
	EIMReject NAT = "eimrej"
	// Cone also lets everybody in at port 4001, which goes to the first node.
	Cone NAT = "cone"
	// Symmetric takes a new random port for every connection: carrier NATs.
	Symmetric NAT = "sym"
	// Sequential takes the next port for every connection.
	Sequential NAT = "seq"
)

// sequentialPorts is how many ports a Sequential router has, from sequentialFirst.
const (
	sequentialFirst = 30000
	sequentialPorts = 4000
)

const (
	lanBridge = "lan0"
	lanRouter = "192.168.1.1"
	// carrierRouter is the carrier's router as its customers see it (RFC 6598).
	carrierRouter = "100.64.0.1"
	// ConePort is forwarded to the first node behind a Cone router.
	ConePort = 4001
)

// Site is a LAN behind a router. All sites use the same addresses.
type Site struct {
	Name   string
	NAT    NAT
	Router *NS
	WAN    netip.Addr // the router's public address
	Nodes  []*Node
	Hosts  []*NS // plain hosts on the LAN, see AddHost

	lab   *Lab
	hosts int // addresses given out on the LAN
}

// AddSite makes a site with its router and no nodes.
func (l *Lab) AddSite(name string, kind NAT) (*Site, error) {
	return l.addOnWAN(name, "site", lanRouter, kind)
}

// AddCarrier makes a carrier's router, which sites stand behind with private
// addresses.
func (l *Lab) AddCarrier(name string, kind NAT) (*Site, error) {
	return l.addOnWAN(name, "carrier", carrierRouter, kind)
}

// addOnWAN makes a router with a public address; inside is its own, private one.
func (l *Lab) addOnWAN(name, what, inside string, kind NAT) (*Site, error) {
	x := len(l.Sites) + 1
	router, err := l.newNS(name)
	if err != nil {
		return nil, err
	}
	s := &Site{Name: name, NAT: kind, Router: router, lab: l}
	l.Sites = append(l.Sites, s)
	if s.WAN, err = l.joinWAN(router, x, 1); err != nil {
		return nil, fmt.Errorf("%s %s: %w", what, name, err)
	}
	return s, s.setUp(inside+"/24", kind)
}

// AddSiteBehind makes a site whose router is a customer of the carrier.
func (l *Lab) AddSiteBehind(carrier *Site, name string, kind NAT) (*Site, error) {
	router, err := l.newNS(name)
	if err != nil {
		return nil, err
	}
	s := &Site{Name: name, NAT: kind, Router: router, lab: l}
	l.Sites = append(l.Sites, s)
	carrier.hosts++
	s.WAN = netip.AddrFrom4([4]byte{100, 64, 0, byte(10 + carrier.hosts)})
	err = l.wire(
		end{ns: router, iface: "wan0", addrs: []string{s.WAN.String() + "/24"}},
		end{ns: carrier.Router, iface: l.portName(), bridge: lanBridge})
	if err == nil {
		err = router.Script("ip route add default via " + carrierRouter)
	}
	if err != nil {
		return nil, fmt.Errorf("site %s: %w", name, err)
	}
	return s, s.setUp(lanRouter+"/24", kind)
}

// setUp makes the router's LAN and rules.
func (s *Site) setUp(lan string, kind NAT) error {
	l, router := s.lab, s.Router
	err := router.Script(
		"sysctl -qw net.ipv4.ip_forward=1",
		"sysctl -qw net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0 || true",
		addBridge(lanBridge),
		"ip addr add "+lan+" dev "+lanBridge,
		"ip link set "+lanBridge+" up",
		"iptables -w -P FORWARD DROP",
		"iptables -w -A FORWARD ! -i wan0 -j ACCEPT",
		"iptables -w -A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
		l.countLeaks(),
	)
	if err != nil {
		return fmt.Errorf("site %s: %w", s.Name, err)
	}
	return s.SetNAT(kind)
}

// SetNAT changes the router's behaviour; running connections are not touched.
func (s *Site) SetNAT(kind NAT) error {
	const closed = `iptables -w -A INPUT -i wan0 -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
		iptables -w -A INPUT -i wan0 -j DROP`
	lines := []string{
		"iptables -w -t nat -F",
		"iptables -w -F INPUT",
		"nft delete table ip sequential 2>/dev/null || true",
	}
	masq := "iptables -w -t nat -A POSTROUTING -o wan0 -j MASQUERADE"
	switch kind {
	case EIM:
		lines = append(lines, masq, closed)
	case EIMReject:
		lines = append(lines, masq)
	case Cone:
		lines = append(lines, masq)
		for _, proto := range []string{"udp", "tcp"} {
			lines = append(lines, fmt.Sprintf("iptables -w -t nat -A PREROUTING -i wan0 -p %s --dport %d -j DNAT --to %s:%d",
				proto, ConePort, lanAddr(1), ConePort))
		}
		lines = append(lines, fmt.Sprintf("iptables -w -A FORWARD -i wan0 -d %s -j ACCEPT", lanAddr(1)))
	case Symmetric:
		lines = append(lines, masq+" --random-fully", closed)
	case Sequential:
		lines = append(lines, closed, s.sequential())
	default:
		return fmt.Errorf("site %s: unknown kind of NAT %q", s.Name, kind)
	}
	s.NAT = kind
	return s.Router.Script(lines...)
}

// sequential returns the script of a NAT that counts.
func (s *Site) sequential() string {
	ports := make([]string, sequentialPorts)
	for i := range ports {
		ports[i] = fmt.Sprintf("%d : %d", i, sequentialFirst+i)
	}
	return fmt.Sprintf(`nft -f - <<'END'
table ip sequential {
	chain post {
		type nat hook postrouting priority 100
		oifname "wan0" meta l4proto { tcp, udp } snat to %s:numgen inc mod %d map { %s }
		oifname "wan0" masquerade
	}
}
END`, s.WAN, len(ports), strings.Join(ports, ", "))
}

// SetWAN gives the router another public address, as a carrier does.
func (s *Site) SetWAN(addr netip.Addr) error {
	old := s.WAN
	s.WAN = addr
	return s.Router.Script(
		fmt.Sprintf("ip addr del %s/16 dev wan0", old),
		fmt.Sprintf("ip addr add %s/16 dev wan0", addr),
		"ip route replace default via "+InternetAddr,
		"conntrack -F")
}

// AddIPv6 gives the node's site a prefix of its own, behind a firewall that lets in only answers. The relays reach it.
func (n *Node) AddIPv6() error {
	l := n.Site.lab
	x := slices.Index(l.Sites, n.Site) + 1
	prefix := fmt.Sprintf("2a05:6:%x::", x)
	err := errors.Join(
		n.Site.Router.Script("sysctl -qw net.ipv6.conf.all.forwarding=1",
			"ip -6 addr add "+prefix+"1/64 dev "+lanBridge+" nodad",
			"ip -6 route replace default via 2a05:5::1",
			"ip6tables -w -P FORWARD DROP",
			"ip6tables -w -A FORWARD ! -i wan0 -j ACCEPT",
			"ip6tables -w -A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT"),
		n.Script("ip -6 addr add "+prefix+"10/64 dev "+n.Uplink+" nodad", "ip -6 route replace default via "+prefix+"1"),
		l.WAN.Script("sysctl -qw net.ipv6.conf.all.forwarding=1", fmt.Sprintf("ip -6 route add %s/64 via 2a05:5:0:%x::1", prefix, x)))
	for _, r := range l.Relays {
		err = errors.Join(err, r.Script("ip -6 route replace default via 2a05:5::1"))
	}
	return err
}

// Block makes both routers drop what goes to the other's public address, before
// they remember it; undo lets it pass again. See Lab.Cut for a path that breaks
// outside.
func (s *Site) Block(other *Site) (undo func() error, err error) {
	rules := func(op string) error {
		rule := "iptables -w -t mangle " + op + " POSTROUTING -o wan0 -j DROP -d "
		return errors.Join(s.Router.Script(rule+other.WAN.String()), other.Router.Script(rule+s.WAN.String()))
	}
	return func() error { return rules("-D") }, rules("-A")
}

// AddHost puts a host without an agent on the LAN.
func (s *Site) AddHost(name string) (*NS, netip.Addr, error) {
	h, err := s.lab.newNS(name)
	if err != nil {
		return nil, netip.Addr{}, err
	}
	s.Hosts = append(s.Hosts, h)
	addr, err := s.join(h)
	return h, addr, err
}

// join plugs a namespace into the LAN, interface eth0.
func (s *Site) join(n *NS) (netip.Addr, error) {
	s.hosts++
	addr := lanAddr(s.hosts)
	err := s.lab.wire(
		end{ns: n, iface: "eth0", addrs: []string{addr.String() + "/24"}},
		end{ns: s.Router, iface: s.lab.portName(), bridge: lanBridge})
	if err != nil {
		return addr, err
	}
	return addr, n.Script("ip route add default via " + lanRouter)
}

// lanAddr is the address of the ith host of a LAN, from 1.
func lanAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 168, 1, byte(10 + i)}) }

// SetTimeouts has the router forget what was silent for so long: UDP, and TCP connections that are established. Packets of a
// forgotten TCP connection are dropped, or answered by a reset.
func (s *Site) SetTimeouts(udp, tcp time.Duration, reset bool) error {
	verdict := "DROP"
	if reset {
		verdict = "REJECT --reject-with tcp-reset"
	}
	u, t := int(udp.Seconds()), int(tcp.Seconds())
	return s.Router.Script(
		fmt.Sprintf("sysctl -qw net.netfilter.nf_conntrack_udp_timeout=%d net.netfilter.nf_conntrack_udp_timeout_stream=%d", u, u),
		fmt.Sprintf("sysctl -qw net.netfilter.nf_conntrack_tcp_timeout_established=%d net.netfilter.nf_conntrack_tcp_loose=0", t),
		"iptables -w -I FORWARD -p tcp -m conntrack --ctstate INVALID -j "+verdict)
}
