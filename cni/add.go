package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"edgemesh/cni/antispoof"
	"edgemesh/cni/conf"
	"edgemesh/cni/ipam"
	"edgemesh/cni/podlink"
)

// call is one invocation, parsed.
type call struct {
	*conf.NetConf
	owner ipam.Owner
}

func parseCall(args *skel.CmdArgs) (*call, error) {
	nc, err := conf.ParseNetConf(args.StdinData, args.Args)
	if err != nil {
		return nil, err
	}
	return &call{nc, ipam.Owner{
		Network: nc.Name, ContainerID: args.ContainerID, IfName: args.IfName,
		Namespace: nc.Pod.Namespace, Pod: nc.Pod.Name, UID: nc.Pod.UID,
	}}, nil
}

// open locks the address store.
func (c *call) open() (*ipam.Store, error) {
	return ipam.Open(c.DataDir, podlink.Host{}, ipam.Policy{For: c.Keep, Keep: c.keeps})
}

// keeps is the keepOnly policy.
func (c *call) keeps(o ipam.Owner) bool {
	switch c.KeepOnly {
	case conf.KeepNone:
		return false
	case conf.KeepStatefulSet:
		return conf.StatefulSetPod(o.Pod)
	}
	return true
}

func add(args *skel.CmdArgs) error {
	result, version, err := doAdd(args)
	if err != nil {
		return cniError("ADD", err)
	}
	return types.PrintResult(result, version)
}

// doAdd keeps one order, on which the uniqueness of addresses rests: record,
// interface, check that the record still stands, start. See DESIGN.md.
func doAdd(args *skel.CmdArgs) (types.Result, string, error) {
	c, err := parseCall(args)
	if err != nil {
		return nil, "", err
	}
	pools, err := conf.LoadSubnet(c.RuntimeDir)
	if err != nil {
		return nil, "", err
	}
	netns, err := ns.GetNS(args.Netns)
	if err != nil {
		return nil, "", types.NewError(types.ErrInvalidNetNS, fmt.Sprintf("edgemesh-cni: ADD: network namespace %q: %v", args.Netns, err),
			"the container's network namespace must exist before ADD")
	}
	defer netns.Close()

	recs, err := c.allocate(pools)
	if err != nil {
		return nil, "", err
	}
	pod := podOf(c.owner, recs, pools)
	result, err := c.connect(pod, pools, netns, recs)
	if err != nil {
		return nil, "", errors.Join(err, c.release())
	}
	return result, c.CNIVersion, nil
}

func (c *call) allocate(pools conf.Pools) ([]ipam.Record, error) {
	store, err := c.open()
	if err != nil {
		return nil, err
	}
	recs, err := store.Allocate(ipam.Request{Owner: c.owner, Blocks: pools.Blocks, Excluded: c.Excluded, Wanted: c.Wanted})
	return recs, errors.Join(err, store.Close())
}

func (c *call) release() error {
	store, err := c.open()
	if err != nil {
		return err
	}
	_, err = store.Release(c.owner)
	return errors.Join(err, store.Close())
}

func podOf(o ipam.Owner, recs []ipam.Record, pools conf.Pools) podlink.Pod {
	pod := podlink.Pod{Owner: o, MTU: pools.MTU}
	for _, r := range recs {
		b, _ := pools.Block(r.IP) // Allocate chose it from there
		pod.Addrs = append(pod.Addrs, podlink.Addr{Prefix: netip.PrefixFrom(r.IP, b.Bits()), Gateway: conf.Gateway(b)})
	}
	return pod
}

// connect makes bridge and interfaces for an allocated pod.
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
	host, err := podlink.Create(pod, br, netns, filter)
	if err != nil {
		return nil, err
	}
	if err := c.stillOurs(recs); err != nil {
		return nil, err
	}
	if err := podlink.Start(host); err != nil {
		return nil, err
	}
	return c.result(pod, br, host, netns), nil
}

// stillOurs checks, now that the interface exists for others to remove, that
// nobody took the addresses before it did.
func (c *call) stillOurs(recs []ipam.Record) error {
	store, err := c.open()
	if err != nil {
		return err
	}
	return errors.Join(store.Holds(recs), store.Close())
}

func (c *call) result(pod podlink.Pod, br, host netlink.Link, netns ns.NetNS) *current.Result {
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
		r.Routes = append(r.Routes, &types.Route{Dst: *podlink.DefaultRoute(a.Gateway), GW: gw})
	}
	return r
}

func del(args *skel.CmdArgs) error {
	c, err := parseCall(args)
	if err == nil {
		err = c.release()
	}
	return cniError("DEL", err)
}
