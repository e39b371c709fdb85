package podlink

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/internal/cni/fault"
)

// RoutedKey is the sysctl by which the agent has the host answer for all pods of a bridge (proxy_arp_pvlan in the kernel's ip-sysctl.rst),
// where it forwards between them in place of the bridge.
func RoutedKey(bridge string) string { return "net/ipv4/conf/" + bridge + "/proxy_arp_pvlan" }

// Routed reports whether the host forwards between the pods of a bridge.
func Routed(bridge string) bool {
	b, err := os.ReadFile("/proc/sys/" + RoutedKey(bridge))
	return err == nil && strings.TrimSpace(string(b)) == "1"
}

// apart lets frames of a pod reach the host alone, and has the host answer for it.
func apart(p Pod, host, br netlink.Link) error {
	if err := netlink.LinkSetIsolated(host, true); err != nil {
		return fmt.Errorf("isolate %s: %w", host.Attrs().Name, err)
	}
	fault.Point("isolated")
	if !Routed(br.Attrs().Name) { // no longer: br_netfilter was loaded meanwhile
		return netlink.LinkSetIsolated(host, false)
	}
	for _, ip := range p.IPs() {
		if ip.Is6() {
			if err := Answer(br, ip); err != nil {
				return err
			}
		}
	}
	return nil
}

// Answer has the host answer for an IPv6 address on a bridge.
func Answer(br netlink.Link, ip netip.Addr) error {
	err := netlink.NeighSet(proxied(br, ip))
	fault.Point("answer")
	return err
}

// NoAnswer ends that. It succeeds if the host does not answer.
func NoAnswer(br netlink.Link, ip netip.Addr) error {
	if err := netlink.NeighDel(proxied(br, ip)); !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

func proxied(br netlink.Link, ip netip.Addr) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: br.Attrs().Index, Family: unix.AF_INET6, Flags: netlink.NTF_PROXY, IP: ip.AsSlice()}
}

// Addresses are those of the pod whose host end l is, nil if it is none.
func Addresses(l netlink.Link) []netip.Addr {
	a, _ := parseAlias(l.Attrs().Alias)
	return a.ips
}
