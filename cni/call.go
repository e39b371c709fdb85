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

func (*plugin) parse(args *skel.CmdArgs) (*call, error) {
	nc, err := conf.ParseNetConf(args.StdinData)
	if err != nil {
		return nil, err
	}
	return &call{nc, ipam.Owner{Network: nc.Name, ContainerID: args.ContainerID, IfName: args.IfName}}, nil
}

// checkNames refuses names that do not fit into the alias of the pod's interface, which
// marks the pod's address as in use.
func (c *call) checkNames() error {
	id, name := c.owner.ContainerID, c.Name
	switch {
	case len(id)+len(name) <= podlink.MaxNames:
		return nil
	case len(name) > len(id):
		return fmt.Errorf("%w: name: %q has %d bytes; with a container ID of %d bytes at most %d fit",
			conf.ErrNetConf, name, len(name), len(id), max(0, podlink.MaxNames-len(id)))
	}
	return fmt.Errorf("%w: CNI_CONTAINERID: %q has %d bytes; at most %d fit",
		conf.ErrArgs, id, len(id), podlink.MaxNames-len(name))
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

// host is the kernel as this network's address store sees it.
func (c *call) host() podlink.Host { return podlink.Host{Store: c.DataDir} }

// open locks the address store.
func (c *call) open() (*ipam.Store, error) {
	return ipam.Open(c.DataDir, c.host(), upkeep.Policy(c.NetConf))
}

// withStore runs f with the address store locked.
func (c *call) withStore(f func(*ipam.Store) error) error {
	store, err := c.open()
	if err != nil {
		return err
	}
	return errors.Join(f(store), store.Close())
}
