package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"edgemesh/internal/cni/antispoof"
	"edgemesh/internal/cni/closing"
	"edgemesh/internal/cni/conf"
	"edgemesh/internal/cni/ipam"
	"edgemesh/internal/cni/podlink"
	"edgemesh/internal/cni/upkeep"
	"edgemesh/internal/membership/mesh"
)

func (p *plugin) add(args *skel.CmdArgs) error {
	result, cniVersion, err := p.doAdd(args)
	if err != nil {
		return err
	}
	return types.PrintResult(result, cniVersion)
}

// subnetPatience is how long ADD waits for an agent that has just been started:
// kubelet retries a pod that failed twice only after 10 to 15 s, and static pods are
// expected within 20 s of a boot. Offline the agent's own static pod runs 7 to 11 s after
// kubelet's start, because kubelet first tries to register the node.
const subnetPatience = 6 * time.Second

// doAdd follows a fixed order, which keeps addresses unique: write the record, create
// the interface, check that the record is still ours, start. See DESIGN.md.
func (p *plugin) doAdd(args *skel.CmdArgs) (types.Result, string, error) {
	c, err := p.valid(args)
	if err != nil {
		return nil, "", err
	}
	if err := c.checkNames(); err != nil {
		return nil, "", err
	}
	prev, err := c.earlierResult()
	if err != nil {
		return nil, "", err
	}
	c.owner.Namespace, c.owner.Pod, c.owner.UID = c.Pod.Namespace, c.Pod.Name, c.Pod.UID
	if pools, err := conf.AwaitSubnet(c.RuntimeDir, subnetPatience); err != nil {
		return nil, "", err
	} else if err := pools.Directory.Same(c.DataDir); err != nil {
		return nil, "", err
	}
	netns, err := openNetNS(args)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = netns.Close() }() // it only holds the namespace

	attached, err := podlink.Attached(c.owner)
	if err == nil && attached {
		err = fmt.Errorf("%w: %s of container %s", podlink.ErrAttached, c.owner.IfName, c.owner.ContainerID)
	}
	if err != nil {
		return nil, "", err
	}
	pools, recs, err := c.allocate()
	if err != nil {
		return nil, "", err
	}
	pod, err := c.podOf(recs, pools)
	var result *current.Result
	if err == nil { // right behind the record, by which the agent judges the pod
		err = closing.Close(c.RuntimeDir, c.owner.Namespace, pod.IPs())
	}
	if err == nil {
		result, err = c.connect(pod, pools, netns, recs)
	}
	if err != nil {
		return nil, "", errors.Join(err, c.release())
	}
	return chained(prev, result), c.CNIVersion, nil
}

// allocate reads the blocks only while it holds the lock, because they may change
// while ADD waits for it.
func (c *call) allocate() (pools conf.Pools, recs []ipam.Record, err error) {
	err = c.withStore(func(s *ipam.Store) error {
		if pools, err = conf.LoadSubnet(c.RuntimeDir); err != nil {
			return err
		}
		if err := upkeep.FirstPod(c.Bridge, pools, s.Records()); err != nil {
			return err
		}
		recs, err = s.Allocate(ipam.Request{Owner: c.owner, Blocks: pools.Blocks, Excluded: slices.Concat(c.Excluded, pools.Reserved), Wanted: c.Wanted})
		return err
	})
	return pools, recs, err
}

// podOf is the pod with the addresses of recs. The error wraps conf.ErrNoSubnet if
// pools no longer has the block of one.
func (c *call) podOf(recs []ipam.Record, pools conf.Pools) (podlink.Pod, error) {
	pod := podlink.Pod{Owner: c.owner, Store: c.DataDir, MTU: pools.MTU, Ranges: pools.Cluster}
	for _, r := range recs {
		b, ok := pools.Block(r.IP)
		if !ok {
			return pod, fmt.Errorf("%w: it has just changed, %s is no longer in it", conf.ErrNoSubnet, r.IP)
		}
		pod.Addrs = append(pod.Addrs, podlink.Addr{Prefix: netip.PrefixFrom(r.IP, b.Bits()), Gateway: mesh.Gateway(b)})
	}
	return pod, nil
}

// connect creates bridge and interfaces for a pod that has its addresses.
func (c *call) connect(pod podlink.Pod, pools conf.Pools, netns ns.NetNS, recs []ipam.Record) (*current.Result, error) {
	br, err := podlink.EnsureBridge(c.Bridge, pools, c.PromiscMode)
	if err != nil {
		return nil, err
	}
	filter := func(l netlink.Link) error {
		if c.AllowSpoofing {
			return nil
		}
		return antispoof.Attach(l, pod.MAC(), pod.IPs())
	}
	host, routes, err := podlink.Create(pod, br, netns, !c.PromiscMode, filter)
	if err != nil {
		return nil, err
	}
	// From now on whoever takes the addresses removes the interface. Check that nobody
	// took them before it existed.
	if err := ipam.Holds(c.DataDir, c.host(), recs); err != nil {
		return nil, err
	}
	if err := c.stillValid(pod, recs); err != nil {
		return nil, err
	}
	if err := podlink.Start(host); err != nil {
		return nil, err
	}
	return c.result(pod, br, host, netns, routes), nil
}

// stillValid checks that the agent has not replaced a block in the meantime. The error
// wraps conf.ErrNoSubnet.
func (c *call) stillValid(pod podlink.Pod, recs []ipam.Record) error {
	pools, err := conf.LoadSubnet(c.RuntimeDir)
	if err != nil {
		return err
	}
	now, err := c.podOf(recs, pools)
	if err == nil && !slices.Equal(now.Addrs, pod.Addrs) {
		err = fmt.Errorf("%w: it has just changed to %v", conf.ErrNoSubnet, pools.Blocks)
	}
	return err
}

func (c *call) result(pod podlink.Pod, br, host netlink.Link, netns ns.NetNS, routes []podlink.Route) *current.Result {
	const podIndex = 2
	r := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			{Name: br.Attrs().Name, Mac: br.Attrs().HardwareAddr.String(), Mtu: br.Attrs().MTU},
			{Name: host.Attrs().Name, Mac: host.Attrs().HardwareAddr.String(), Mtu: host.Attrs().MTU},
			{Name: pod.Owner.IfName, Mac: pod.MAC().String(), Mtu: pod.MTU, Sandbox: netns.Path()},
		},
		DNS: c.DNS,
	}
	for _, a := range pod.Addrs {
		gw := a.Gateway.AsSlice()
		r.IPs = append(r.IPs, &current.IPConfig{
			Interface: current.Int(podIndex), Address: *podlink.IPNet(a.Prefix), Gateway: gw,
		})
	}
	for _, x := range routes {
		r.Routes = append(r.Routes, &types.Route{Dst: *podlink.IPNet(x.To), GW: x.Gateway.AsSlice()})
	}
	return r
}
