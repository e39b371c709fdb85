package main

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"edgemesh/internal/cni/ipam"
	"edgemesh/internal/cni/podlink"
	"edgemesh/internal/cni/upkeep"
)

// check verifies that an attachment is still as ADD left it: prevResult, the
// records, the interfaces on both sides, addresses, routes, filter.
func (p *plugin) check(args *skel.CmdArgs) error {
	c, err := p.valid(args)
	if err != nil {
		return err
	}
	prev, err := c.prevResult()
	if err != nil {
		return err
	}
	netns, err := openNetNS(args)
	if err != nil {
		return err
	}
	defer func() { _ = netns.Close() }() // it only holds the namespace

	var recs []ipam.Record
	err = c.withStore(func(s *ipam.Store) error {
		for _, r := range s.Records() {
			if r.InUse() && r.ContainerID == c.owner.ContainerID && r.IfName == c.owner.IfName {
				recs = append(recs, r)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	pod, err := c.recorded(prev, recs, args.Netns)
	if err != nil {
		return err
	}
	mac, err := c.hardware(prev, args.Netns, pod)
	if err != nil {
		return err
	}
	return podlink.Check(pod, mac, c.Bridge, netns, !c.AllowSpoofing)
}

// recorded is the pod that prevResult describes, limited to what is ours and backed by
// recs: chained plugins may have added interfaces and addresses.
func (c *call) recorded(prev *current.Result, recs []ipam.Record, sandbox string) (podlink.Pod, error) {
	pod := podlink.Pod{Owner: c.owner}
	index := slices.IndexFunc(prev.Interfaces, func(i *current.Interface) bool {
		return i.Name == c.owner.IfName && i.Sandbox == sandbox
	})
	if index < 0 {
		return pod, fmt.Errorf("%w: prevResult has no interface %s in %s", podlink.ErrDiffers, c.owner.IfName, sandbox)
	}
	for _, ip := range prev.IPs {
		if ip.Interface == nil || *ip.Interface != index {
			continue
		}
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		gw, _ := netip.AddrFromSlice(ip.Gateway)
		ones, _ := ip.Address.Mask.Size()
		if !slices.ContainsFunc(recs, func(r ipam.Record) bool { return r.IP == a.Unmap() }) {
			return pod, fmt.Errorf("%w: %s has no record of this container in %s", podlink.ErrDiffers, a.Unmap(), c.DataDir)
		}
		pod.Addrs = append(pod.Addrs, podlink.Addr{Prefix: netip.PrefixFrom(a.Unmap(), ones), Gateway: gw.Unmap()})
	}
	if len(pod.Addrs) == 0 {
		return pod, fmt.Errorf("%w: prevResult has no address of %s", podlink.ErrDiffers, c.owner.IfName)
	}
	return pod, nil
}

// hardware is the MAC that the pod's interface should have: prevResult's, where a chained plugin (tuning) has set another. The
// source filter drops what comes from such a MAC.
func (c *call) hardware(prev *current.Result, sandbox string, pod podlink.Pod) (net.HardwareAddr, error) {
	for _, i := range prev.Interfaces {
		if i.Name == c.owner.IfName && i.Sandbox == sandbox && i.Mac != "" {
			mac, err := net.ParseMAC(i.Mac)
			if err != nil {
				return nil, fmt.Errorf("%w: prevResult says MAC %q: %w", podlink.ErrDiffers, i.Mac, err)
			}
			if own := pod.MAC(); !c.AllowSpoofing && mac.String() != own.String() {
				return nil, fmt.Errorf("%w: a chained plugin has set the MAC %s, but the source filter lets only %s through; set cni.allowSpoofing: true in the agent's configuration, or no MAC", podlink.ErrDiffers, mac, own)
			}
			return mac, nil
		}
	}
	return pod.MAC(), nil
}

// status succeeds if an ADD could. Every failure has code 50, plugin not available:
// running pods keep their connectivity. A full pool does not count, or the node's running
// pods would be evicted.
func (p *plugin) status(args *skel.CmdArgs) error {
	c, err := p.valid(args)
	if err == nil {
		err = upkeep.Status(c.NetConf)
	}
	if err == nil {
		return nil
	}
	e := asError("STATUS", err)
	return types.NewError(types.ErrPluginNotAvailable, e.Msg, e.Details)
}
