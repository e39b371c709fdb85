package lab

import (
	"context"
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
	conf := filepath.Join(s.lab.Dir, s.Name+"-tayga.conf")
	text := fmt.Sprintf("tun-device nat64\nipv4-addr 192.168.255.1\nipv6-addr 2a05:6:6:2::1\nprefix %s\ndynamic-pool 192.168.255.0/24\n", prefix)
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		return nil, fmt.Errorf("tayga: %w", err)
	}
	err := s.Router.Script(
		"sysctl -qw net.ipv6.conf.all.forwarding=1",
		"ip -6 addr replace "+Router6+"/64 dev "+lanBridge+" nodad",
		"tayga --config "+conf+" --mktun",
		"ip link set nat64 up",
		"ip route add 192.168.255.0/24 dev nat64",
		"ip -6 route add 2a05:6:6:2::1 dev nat64",
		"ip -6 route add "+prefix.String()+" dev nat64")
	if err != nil {
		return nil, fmt.Errorf("tayga: %w", err)
	}
	p, err := s.Router.Start("tayga-"+s.Name, "tayga", "--config", conf, "--nodetach")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return p, Until(ctx, 20*time.Millisecond, func() error {
		if !p.Running() {
			return fmt.Errorf("tayga ended: %s\n%s", p.state(), p.Tail(10))
		}
		_, err := s.Router.Run(ctx, "sh", "-c", "ip link show nat64 | grep -q LOWER_UP")
		return err
	})
}
