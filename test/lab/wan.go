package lab

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// InternetAddr is a host of the internet that is neither node nor relay.
const InternetAddr = "5.5.0.1"

const wanBridge = "br0"

// addBridge makes a bridge that keeps its first address. By default it has the lowest of its ports': neighbours remember the one
// before, and a port with that address swallows what is for the bridge once it is plugged in elsewhere.
func addBridge(name string) string {
	return fmt.Sprintf("ip link add %[1]s type bridge mcast_snooping 0\nip link set %[1]s address $(cat /sys/class/net/%[1]s/address)", name)
}

func (l *Lab) makeWAN() error {
	wan, err := l.newNS("wan")
	if err != nil {
		return err
	}
	l.WAN = wan
	return wan.Script(
		"sysctl -qw net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0 || true",
		addBridge(wanBridge),
		"ip addr add "+InternetAddr+"/16 dev "+wanBridge,
		"ip addr add 2a05:5::1/32 dev "+wanBridge+" nodad",
		"ip link set "+wanBridge+" up",
		l.countLeaks(),
	)
}

// joinWAN plugs the namespace into the WAN as 5.5.X.Y, interface wan0, with the
// internet as default route.
func (l *Lab) joinWAN(n *NS, x, y int) (netip.Addr, error) {
	addr := netip.AddrFrom4([4]byte{5, 5, byte(x), byte(y)})
	addrs := []string{addr.String() + "/16", fmt.Sprintf("2a05:5:0:%x::%x/32", x, y)}
	err := l.wire(
		end{ns: n, iface: "wan0", addrs: addrs},
		end{ns: l.WAN, iface: l.portName(), bridge: wanBridge})
	if err != nil {
		return addr, err
	}
	return addr, n.Script("ip route add default via " + InternetAddr)
}

// AddStranger puts a host on the WAN that has many addresses, from first on.
func (l *Lab) AddStranger(name string, addrs int) (n *NS, first netip.Addr, err error) {
	if n, err = l.newNS(name); err != nil {
		return nil, first, err
	}
	if first, err = l.joinWAN(n, 200, 1); err != nil {
		return nil, first, err
	}
	var lines []string
	for at := range addrs - 1 {
		lines = append(lines, fmt.Sprintf("ip addr add 5.5.200.%d/16 dev wan0", at+2))
	}
	return n, first, n.Script(lines...)
}

// Cut drops everything between two public addresses inside the WAN, as a broken
// carrier does: nobody is notified, and routers remember what they sent. undo repairs
// it.
func (l *Lab) Cut(a, b netip.Addr) (undo func() error, err error) {
	l.cuts++
	table := fmt.Sprintf("cut%d", l.cuts)
	rule := func(from, to netip.Addr) string {
		return fmt.Sprintf("nft add rule bridge %s forward ip saddr %s ip daddr %s drop", table, from, to)
	}
	return func() error { return l.WAN.Script("nft delete table bridge " + table) }, l.WAN.Script(
		"nft add table bridge "+table,
		"nft add chain bridge "+table+" forward '{ type filter hook forward priority 0; }'",
		rule(a, b), rule(b, a))
}

// countLeaks returns a script that makes a router count packets of the cluster's
// ranges: outside the tunnel there must be none.
func (l *Lab) countLeaks() string {
	var lines []string
	for _, r := range l.Cluster.PodCIDRs {
		ipt := "iptables"
		if strings.Contains(r, ":") {
			ipt = "ip6tables"
		}
		for _, side := range []string{"-s", "-d"} {
			lines = append(lines,
				fmt.Sprintf("%s -w -t raw -A PREROUTING %s %s -m comment --comment leak", ipt, side, r))
		}
	}
	return strings.Join(lines, "\n")
}

// Leaks returns how many packets with an address of the cluster's ranges any
// router or the internet has seen so far, by namespace.
func (l *Lab) Leaks(ctx context.Context) (map[string]int, error) {
	at := []*NS{l.WAN}
	for _, s := range l.Sites {
		at = append(at, s.Router)
	}
	leaks := map[string]int{}
	for _, n := range at {
		for _, ipt := range []string{"iptables", "ip6tables"} {
			out, err := n.Run(ctx, ipt, "-w", "-t", "raw", "-nvxL", "PREROUTING")
			if err != nil {
				return nil, fmt.Errorf("leak counters: %w", err)
			}
			for line := range strings.Lines(out) {
				if !strings.Contains(line, "/* leak */") {
					continue
				}
				count, err := strconv.Atoi(strings.Fields(line)[0])
				if err != nil {
					return nil, fmt.Errorf("leak counter %q: %w", line, err)
				}
				if count > 0 {
					leaks[n.Name] += count
				}
			}
		}
	}
	return leaks, nil
}
