package main

import (
	"errors"
	"fmt"
	"strings"

	cnins "github.com/containernetworking/cni/pkg/ns"
	"github.com/containernetworking/cni/pkg/skel"
	current "github.com/containernetworking/cni/pkg/types/100"
	cniversion "github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/ns"

	"edgemesh/internal/cni/conf"
	"edgemesh/internal/cni/ipam"
	"edgemesh/internal/cni/podlink"
	"edgemesh/internal/cni/upkeep"
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

// valid is parse for calls that need a valid configuration.
func (p *plugin) valid(args *skel.CmdArgs) (*call, error) {
	c, err := p.parse(args)
	if err == nil {
		err = c.Validate(args.Args)
	}
	return c, err
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

// withStore runs f with the address store locked.
func (c *call) withStore(f func(*ipam.Store) error) error {
	store, err := ipam.Open(c.DataDir, c.host(), upkeep.Policy(c.NetConf))
	if err != nil {
		return err
	}
	return errors.Join(f(store), store.Close())
}

// earlierResult is the result of the plugins before this one in the list, or nil.
func (c *call) earlierResult() (*current.Result, error) {
	if err := cniversion.ParsePrevResult(&c.PluginConf); err != nil {
		return nil, fmt.Errorf("%w: prevResult: %w", conf.ErrNetConf, err)
	}
	if c.PrevResult == nil {
		return nil, nil
	}
	prev, err := current.NewResultFromResult(c.PrevResult)
	if err != nil {
		return nil, fmt.Errorf("%w: prevResult: %w", conf.ErrNetConf, err)
	}
	return prev, nil
}

// prevResult is the result of ADD, which a runtime must pass to CHECK.
func (c *call) prevResult() (*current.Result, error) {
	prev, err := c.earlierResult()
	if err == nil && prev == nil {
		err = fmt.Errorf("%w: prevResult: missing", conf.ErrNetConf)
	}
	return prev, err
}

// chained is r with the earlier result in front, as the specification requires of every
// plugin in a list. If r has DNS settings, they replace the earlier ones.
func chained(prev, r *current.Result) *current.Result {
	if prev == nil {
		return r
	}
	for _, ip := range r.IPs {
		ip.Interface = current.Int(*ip.Interface + len(prev.Interfaces))
	}
	r.Interfaces = append(prev.Interfaces, r.Interfaces...)
	r.IPs = append(prev.IPs, r.IPs...)
	r.Routes = append(prev.Routes, r.Routes...)
	if r.DNS.IsEmpty() {
		r.DNS = prev.DNS
	}
	return r
}
