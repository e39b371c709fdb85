package main

import (
	"errors"
	"fmt"
	"strings"

	cnins "github.com/containernetworking/cni/pkg/ns"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/plugins/pkg/ns"

	"edgemesh/cni/conf"
	"edgemesh/cni/ipam"
	"edgemesh/cni/podlink"
	"edgemesh/cni/upkeep"
)

// call is one invocation, parsed.
type call struct {
	*conf.NetConf
	owner ipam.Owner
}

func (p *plugin) parse(args *skel.CmdArgs) (*call, error) {
	nc, err := conf.ParseNetConf(args.StdinData)
	if err != nil {
		return nil, err
	}
	p.version = nc.CNIVersion
	return &call{nc, ipam.Owner{Network: nc.Name, ContainerID: args.ContainerID, IfName: args.IfName}}, nil
}

// openNetNS opens the container's network namespace. Errors wrap errNetNS.
func openNetNS(args *skel.CmdArgs) (ns.NetNS, error) {
	netns, err := ns.GetNS(args.Netns)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNetNS, err)
	}
	if override := args.NetnsOverride; override != "1" && !strings.EqualFold(override, "true") {
		if same, _ := cnins.CheckNetNS(args.Netns); same {
			return nil, errors.Join(fmt.Errorf("%w: %s is the plugin's own", errNetNS, args.Netns), netns.Close())
		}
	}
	return netns, nil
}

// open locks the address store.
func (c *call) open() (*ipam.Store, error) {
	return ipam.Open(c.DataDir, podlink.Host{}, upkeep.Policy(c.NetConf))
}

// withStore runs f with the address store locked.
func (c *call) withStore(f func(*ipam.Store) error) error {
	store, err := c.open()
	if err != nil {
		return err
	}
	return errors.Join(f(store), store.Close())
}
