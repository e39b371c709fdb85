package main

import (
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"edgemesh/cni/ipam"
)

// gc removes every attachment of the network that the runtime does not list
// in cni.dev/valid-attachments, and frees its addresses.
func (p *plugin) gc(args *skel.CmdArgs) error {
	c, err := p.parse(args)
	if err != nil {
		return cniError("GC", err)
	}
	if err := c.Validate(args.Args); err != nil {
		return cniError("GC", err)
	}
	valid := map[types.GCAttachment]bool{}
	for _, a := range c.ValidAttachments {
		valid[a] = true
	}
	return cniError("GC", c.withStore(func(s *ipam.Store) error {
		_, err := s.GC(c.Name, func(id, ifName string) bool {
			return valid[types.GCAttachment{ContainerID: id, IfName: ifName}]
		})
		return err
	}))
}
