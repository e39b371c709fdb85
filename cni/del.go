package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/containernetworking/cni/pkg/skel"

	"edgemesh/cni/ipam"
)

// del removes the attachment's interface and frees its addresses. It needs
// neither the network namespace nor a previous result nor subnet.json, none of which
// exists after a power cut. It succeeds if everything is already gone.
func (p *plugin) del(args *skel.CmdArgs) error {
	c, err := p.parse(args)
	if err != nil {
		return cniError("DEL", err)
	}
	// A configuration that ADD refuses must not prevent the deletion of pods. Missing
	// options have defaults, missing names are in the record.
	if err := c.Validate(args.Args); err != nil {
		fmt.Fprintln(os.Stderr, "edgemesh-cni: DEL continues despite:", err)
	}
	c.owner.Namespace, c.owner.Pod, c.owner.UID = c.Pod.Namespace, c.Pod.Name, c.Pod.UID
	return cniError("DEL", c.release())
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
		_, err := s.Release(c.owner)
		return err
	})
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS) {
		fmt.Fprintln(os.Stderr, "edgemesh-cni: address not freed now, reclaimed later:", err)
		return nil
	}
	return err
}
