package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"edgemesh/internal/cni/closing"
	"edgemesh/internal/cni/conf"
	"edgemesh/internal/cni/ipam"
)

// del removes the attachment's interface and frees its addresses. It needs
// neither the network namespace nor a previous result nor subnet.json, none of which
// exists after a power cut. It succeeds if everything is already gone.
func (p *plugin) del(args *skel.CmdArgs) error {
	c, err := p.parse(args)
	if err != nil {
		return err
	}
	// A configuration that ADD refuses must not prevent the deletion of pods. Missing
	// options have defaults, missing names are in the record.
	if err := c.Validate(args.Args); err != nil {
		fmt.Fprintln(os.Stderr, "edgemesh-cni: DEL continues despite:", err)
	}
	c.owner.Namespace, c.owner.Pod, c.owner.UID = c.Pod.Namespace, c.Pod.Name, c.Pod.UID
	return c.release()
}

// release is all of DEL, and undoes a failed ADD. On a full or read-only disk the record
// stays; since the interface is gone, the pod's next ADD, a full pool or the agent's start
// reclaims the address. Failing would keep pods whose deletion may free the disk.
func (c *call) release() error {
	// The slow part runs without the lock. Release repeats it, because an ADD in progress
	// may create the interface in between.
	if err := c.host().Evict(c.owner); err != nil {
		return err
	}
	err := c.withStore(func(s *ipam.Store) error {
		var addrs []netip.Addr
		for _, r := range s.Records() {
			if r.InUse() && r.ContainerID == c.owner.ContainerID && r.IfName == c.owner.IfName {
				addrs = append(addrs, r.IP)
			}
		}
		closing.Forget(c.RuntimeDir, addrs) // while nobody else can have them
		_, err := s.Release(c.owner)
		return err
	})
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS) {
		fmt.Fprintln(os.Stderr, "edgemesh-cni: address not freed now, reclaimed later:", err)
		return nil
	}
	return err
}

// gc removes every attachment of the network that the runtime does not list
// in cni.dev/valid-attachments, and frees its addresses.
func (p *plugin) gc(args *skel.CmdArgs) error {
	c, err := p.valid(args)
	if err != nil {
		return err
	}
	valid, err := c.validAttachments(args.StdinData)
	if err != nil {
		return err
	}
	return c.withStore(func(s *ipam.Store) error {
		_, err := s.GC(c.Name, func(id, ifName string) bool {
			return valid[types.GCAttachment{ContainerID: id, IfName: ifName}]
		})
		return err
	})
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
