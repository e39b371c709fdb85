package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// LAN6 is the network of a site that has IPv6 alone, and Router6 its router there.
const (
	LAN6    = "2a05:6:6:1::/64"
	Router6 = "2a05:6:6:1::1"
)

// IPv6Only takes IPv4 from the site's nodes and gives them IPv6 addresses of LAN6; IPv4Only undoes it. They have no route to
// the IPv6 internet: what leaves the site does so by NAT64, where there is one.
func (s *Site) IPv6Only() error {
	for i, n := range s.Nodes {
		err := n.Script(
			fmt.Sprintf("ip -6 addr add 2a05:6:6:1::%x/64 dev %s nodad", 10+i, n.Uplink),
			"ip -6 route add default via "+Router6,
			"ip -4 addr flush dev "+n.Uplink)
		if err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	return nil
}

// IPv4Only gives the nodes IPv4 again, and takes IPv6.
func (s *Site) IPv4Only() error {
	for _, n := range s.Nodes {
		if err := n.Script(fmt.Sprintf("ip addr add %s/24 dev %s", n.Addr, n.Uplink), "ip route add default via "+lanRouter,
			"ip -6 addr flush dev "+n.Uplink+" scope global", "ip -6 route del default || true"); err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	return nil
}

// StartNAT64 makes the site's router a NAT64: tayga gives each IPv6 host an IPv4 address, which the router's NAT translates.
func (s *Site) StartNAT64(prefix netip.Prefix) (*Process, error) {
	if err := s.Router.Script("sysctl -qw net.ipv6.conf.all.forwarding=1", "ip -6 addr replace "+Router6+"/64 dev "+lanBridge+" nodad"); err != nil {
		return nil, err
	}
	return startTayga(s.Router, filepath.Join(s.lab.Dir, s.Name+"-tayga.conf"), "nat64",
		fmt.Sprintf("ipv4-addr 192.168.255.1\nipv6-addr 2a05:6:6:2::1\nprefix %s\ndynamic-pool 192.168.255.0/24\n", prefix),
		"ip route add 192.168.255.0/24 dev nat64", "ip -6 route add 2a05:6:6:2::1 dev nat64", "ip -6 route add "+prefix.String()+" dev nat64")
}

// ForgetNAT64 drops packets from the nodes' own addresses through NAT64: only those of a CLAT pass.
func (s *Site) ForgetNAT64() error {
	return s.Router.Script(fmt.Sprintf("ip6tables -w -I FORWARD -o nat64 ! -s %s -j DROP", clat6))
}

// clat6 is the IPv6 address that a CLAT translates IPv4 to.
const clat6 = "2a05:6:6:1::c1a7"

// StartCLAT gives a node of a site with IPv6 alone an IPv4 address and route, which tayga translates for the NAT64 (RFC 6877).
func (n *Node) StartCLAT(prefix netip.Prefix) (*Process, error) {
	if err := n.Script("sysctl -qw net.ipv6.conf.all.forwarding=1 net.ipv6.conf."+n.Uplink+".proxy_ndp=1",
		"ip -6 neigh add proxy "+clat6+" dev "+n.Uplink); err != nil {
		return nil, err
	}
	return startTayga(n.NS, filepath.Join(n.Dir, "clat.conf"), "clat",
		fmt.Sprintf("ipv4-addr 192.0.0.2\nipv6-addr 2a05:6:6:1::c1a8\nprefix %s\nmap 192.0.0.4 %s\n", prefix, clat6),
		"ip -6 route add "+clat6+" dev clat", "ip addr add 192.0.0.4/32 dev clat", "ip route add default dev clat src 192.0.0.4 mtu 1260")
}

// StopCLAT undoes StartCLAT, and ForgetNAT64 of the node's site.
func (n *Node) StopCLAT(p *Process) error {
	return errors.Join(p.Stop(), n.Script("ip link del clat"),
		n.Site.Router.Script(fmt.Sprintf("ip6tables -w -D FORWARD -o nat64 ! -s %s -j DROP", clat6)))
}

// startTayga starts a translator with a TUN device, and waits until that is up; more is done once it exists.
func startTayga(n *NS, conf, dev, text string, more ...string) (*Process, error) {
	if err := os.WriteFile(conf, []byte("tun-device "+dev+"\n"+text), 0o644); err != nil {
		return nil, fmt.Errorf("tayga: %w", err)
	}
	if err := n.Script(append([]string{"tayga --config " + conf + " --mktun", "ip link set " + dev + " up"}, more...)...); err != nil {
		return nil, fmt.Errorf("tayga: %w", err)
	}
	p, err := n.Start("tayga-"+dev, "tayga", "--config", conf, "--nodetach")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return p, Until(ctx, 20*time.Millisecond, func() error {
		if !p.Running() {
			return fmt.Errorf("tayga ended: %s\n%s", p.state(), p.Tail(10))
		}
		_, err := n.Run(ctx, "sh", "-c", "ip link show "+dev+" | grep -q LOWER_UP")
		return err
	})
}
