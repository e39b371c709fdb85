// Package podlink creates and checks the kernel's side of an attachment: the node's
// bridge and each pod's veth pair. It works in the network namespace of the calling
// thread.
package podlink

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/internal/cni/conf"
	"edgemesh/internal/cni/fault"
	"edgemesh/internal/membership/mesh"
)

// EnsureBridge creates the bridge or repairs it: its fixed MAC, the gateway address of
// every block, up. The agent sets an existing bridge's MTU. A new bridge adopts the pods'
// interfaces that lost theirs.
func EnsureBridge(name string, pools conf.Pools, promiscuous bool) (netlink.Link, error) {
	br, err := netlink.LinkByName(name)
	made := false
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		br, made, err = addBridge(name, pools.MTU)
	}
	if err != nil {
		return nil, fmt.Errorf("bridge %s: %w", name, err)
	}
	if br.Type() != "bridge" {
		return nil, fmt.Errorf("bridge %s: an interface of that name is a %s, not a bridge", name, br.Type())
	}
	if mac := conf.BridgeMAC(name); !bytes.Equal(br.Attrs().HardwareAddr, mac) {
		if err := netlink.LinkSetHardwareAddr(br, mac); err != nil {
			return nil, fmt.Errorf("bridge %s: set MAC: %w", name, err)
		}
		fault.Point("bridge MAC")
		br.Attrs().HardwareAddr = mac
	}
	if err := addGateways(br, pools.Blocks); err != nil {
		return nil, fmt.Errorf("bridge %s: %w", name, err)
	}
	if promiscuous && br.Attrs().Promisc == 0 {
		if err := netlink.SetPromiscOn(br); err != nil {
			return nil, fmt.Errorf("bridge %s: promiscuous mode: %w", name, err)
		}
		fault.Point("promiscuous")
	}
	if br.Attrs().Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(br); err != nil {
			return nil, fmt.Errorf("bridge %s: set up: %w", name, err)
		}
	}
	fault.Point("bridge up")
	if made {
		if err := adopt(br, !promiscuous); err != nil {
			return nil, fmt.Errorf("bridge %s: %w", name, err)
		}
	}
	return br, nil
}

// addBridge creates the bridge; made is false if another process was faster.
func addBridge(name string, mtu int) (br netlink.Link, made bool, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr, attrs.TxQLen = name, mtu, conf.BridgeMAC(name), -1
	switch err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); {
	case err == nil:
		made = true
	case !errors.Is(err, unix.EEXIST):
		return nil, false, fmt.Errorf("create: %w", err)
	}
	fault.Point("bridge made")
	// Only the node sets routes to pods: ignore router advertisements from pods.
	if err := setSysctl("net/ipv6/conf/"+name+"/accept_ra", "0"); err != nil {
		return nil, made, err
	}
	br, err = netlink.LinkByName(name)
	return br, made, err
}

// addGateways adds the missing gateway addresses. IPv6 ones skip duplicate
// address detection, which never ends on a bridge without ports.
func addGateways(br netlink.Link, blocks []netip.Prefix) error {
	have, err := addrList(br)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, b := range blocks {
		gw := netip.PrefixFrom(mesh.Gateway(b), b.Bits())
		if hasAddr(have, gw) {
			continue
		}
		addr := &netlink.Addr{IPNet: IPNet(gw)}
		if b.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
			if err := setSysctl("net/ipv6/conf/"+br.Attrs().Name+"/disable_ipv6", "0"); err != nil {
				return err
			}
		}
		if err := netlink.AddrAdd(br, addr); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add gateway %s: %w", gw, err)
		}
		fault.Point("gateway")
	}
	return nil
}

// adopt attaches pods' interfaces that have no bridge to br.
func adopt(br netlink.Link, hairpin bool) error {
	links, err := Dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range links {
		if _, ok := parseAlias(l.Attrs().Alias); !ok || l.Type() != "veth" || l.Attrs().MasterIndex != 0 {
			continue
		}
		if err := plug(l, br, hairpin); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("attach %s again: %w", l.Attrs().Name, err)
		}
	}
	return nil
}

// plug makes l a port of br. Hairpin mode lets a pod reach itself through a Service's
// address. A promiscuous bridge does so too, and both together would deliver such packets
// twice.
func plug(l, br netlink.Link, hairpin bool) error {
	if err := netlink.LinkSetMaster(l, br); err != nil {
		return err
	}
	fault.Point("port")
	err := netlink.LinkSetHairpin(l, hairpin)
	fault.Point("hairpin")
	return err
}

// IPNet converts p and keeps its host bits.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// setSysctl writes a sysctl of this thread's network namespace. IPv6 sysctls do not exist
// on a kernel without IPv6, and then need not be set.
func setSysctl(key, value string) error {
	err := os.WriteFile("/proc/sys/"+key, []byte(value), 0o644)
	if errors.Is(err, os.ErrNotExist) && strings.HasPrefix(key, "net/ipv6/") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sysctl: %w", err)
	}
	fault.Point("sysctl " + key)
	return nil
}

// dumpWait bounds how long Dump tries. On a node whose pods all start at the same time a
// dump is interrupted repeatedly, but not for seconds, because the ADDs take turns at the
// store's lock.
const dumpWait = 5 * time.Second

// Dump repeats a netlink dump until no change of the kernel's list interrupts it. An
// interrupted dump may be incomplete (NLM_F_DUMP_INTR), and a missing interface would look
// like a dead pod.
func Dump[T any](list func() (T, error)) (T, error) {
	deadline := time.Now().Add(dumpWait)
	for {
		out, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || time.Now().After(deadline) {
			return out, err
		}
	}
}

func addrList(l netlink.Link) ([]netlink.Addr, error) {
	return Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
}
