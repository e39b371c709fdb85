package main

import (
	"encoding/json"
	"fmt"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"edgemesh/cni/conf"
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
	valid, err := c.validAttachments(args.StdinData)
	if err != nil {
		return cniError("GC", err)
	}
	return cniError("GC", c.withStore(func(s *ipam.Store) error {
		_, err := s.GC(c.Name, func(id, ifName string) bool {
			return valid[types.GCAttachment{ContainerID: id, IfName: ifName}]
		})
		return err
	}))
}

// validAttachments reads the list. Without the key nothing may be collected, or every
// pod would lose its network. An empty list, or null, does mean that none is valid. The
// first text of specification 1.1 called the key cni.dev/attachments.
func (c *call) validAttachments(stdin []byte) (map[types.GCAttachment]bool, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(stdin, &keys); err != nil {
		return nil, fmt.Errorf("%w: %w", conf.ErrNetConf, err)
	}
	raw, ok := keys["cni.dev/valid-attachments"]
	if !ok {
		raw, ok = keys["cni.dev/attachments"]
	}
	if !ok {
		return nil, fmt.Errorf("%w: cni.dev/valid-attachments: missing", conf.ErrNetConf)
	}
	var list []types.GCAttachment
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("%w: cni.dev/valid-attachments: %w", conf.ErrNetConf, err)
	}
	valid := map[types.GCAttachment]bool{}
	for _, a := range list {
		valid[a] = true
	}
	return valid, nil
}
