package lab

import (
	"context"
	"fmt"
	"os/exec"
)

// end is one end of a wire.
type end struct {
	ns     *NS
	iface  string
	bridge string // plugged into this bridge of the namespace when not empty
	addrs  []string
}

// wire joins two namespaces. All links of the lab are made here. It is a veth
// pair: as fast as the machine, no delay, no loss. InsertLink makes it slow, long
// or lossy.
func (l *Lab) wire(a, b end) error {
	out, err := exec.Command("ip", "link", "add", a.iface, "netns", a.ns.Full,
		"type", "veth", "peer", "name", b.iface, "netns", b.ns.Full).CombinedOutput()
	if err != nil {
		return fmt.Errorf("wire %s to %s: %w: %s", a.ns.Name, b.ns.Name, err, out)
	}
	for _, e := range []end{a, b} {
		lines := []string{}
		if e.bridge != "" {
			lines = append(lines, fmt.Sprintf("ip link set %s master %s", e.iface, e.bridge))
			lines = append(lines, fmt.Sprintf("sysctl -qw net.ipv6.conf.%s.disable_ipv6=1", e.iface))
		}
		for _, addr := range e.addrs {
			lines = append(lines, fmt.Sprintf("ip addr add %s dev %s%s", addr, e.iface, nodad(addr)))
		}
		if err := e.ns.Script(append(lines, "ip link set "+e.iface+" up")...); err != nil {
			return err
		}
	}
	return nil
}

// SetRate limits what leaves the interface to mbit Mbit/s with a queue of 50 ms;
// 0 removes the limit. Call it on both ends for both directions.
func (n *NS) SetRate(iface string, mbit int) error {
	if mbit == 0 {
		_, err := n.Run(context.Background(), "tc", "qdisc", "del", "dev", iface, "root")
		return err
	}
	return n.Script(fmt.Sprintf("tc qdisc replace dev %s root tbf rate %dmbit burst 128k latency 50ms", iface, mbit))
}

// nodad returns the option that makes an IPv6 address usable immediately.
func nodad(addr string) string {
	for _, c := range addr {
		if c == ':' {
			return " nodad"
		}
	}
	return ""
}

// Wire joins two namespaces by one more link, such as a second LAN.
func (l *Lab) Wire(a *NS, ifaceA, addrA string, b *NS, ifaceB, addrB string) error {
	return l.wire(end{ns: a, iface: ifaceA, addrs: []string{addrA}}, end{ns: b, iface: ifaceB, addrs: []string{addrB}})
}
