package main

import (
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"edgemesh/cni/upkeep"
)

// status succeeds if an ADD could. Every failure has code 50, plugin not available:
// running pods keep their connectivity. A full pool does not count, or the node's running
// pods would be evicted.
func (p *plugin) status(args *skel.CmdArgs) error {
	err := p.checkStatus(args)
	if err == nil {
		return nil
	}
	e := asError("STATUS", err)
	return types.NewError(types.ErrPluginNotAvailable, e.Msg, e.Details)
}

func (p *plugin) checkStatus(args *skel.CmdArgs) error {
	c, err := p.parse(args)
	if err != nil {
		return err
	}
	if err := c.Validate(args.Args); err != nil {
		return err
	}
	return upkeep.Status(c.NetConf)
}
