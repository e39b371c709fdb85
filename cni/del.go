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
// neither the network namespace nor a previous result, and no subnet.json:
// after a power cut there is none of them. What is gone already is no error.
func (p *plugin) del(args *skel.CmdArgs) error {
	c, err := p.parse(args)
	if err != nil {
		return cniError("DEL", err)
	}
	// A configuration that ADD refuses must not keep pods from going. Without
	// options the defaults hold, without names the record knows them.
	if err := c.Validate(args.Args); err != nil {
		fmt.Fprintln(os.Stderr, "edgemesh-cni: DEL goes on in spite of:", err)
	}
	c.owner.Namespace, c.owner.Pod, c.owner.UID = c.Pod.Namespace, c.Pod.Name, c.Pod.UID
	return cniError("DEL", c.release())
}

// release is the whole of DEL, and the way back of a failed ADD. On a full or
// read-only disk the record stays: the interface is gone, so that the next
// ADD of the pod, a full pool or the agent's start reclaims the address. To
// fail would keep pods alive whose removal may free the disk.
func (c *call) release() error {
	// The slow part without the lock. Release does it again: an ADD under way
	// may make the interface in between.
	if err := c.host().Evict(c.owner); err != nil {
		return err
	}
	err := c.withStore(func(s *ipam.Store) error {
		_, err := s.Release(c.owner)
		return err
	})
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS) {
		fmt.Fprintln(os.Stderr, "edgemesh-cni: the address is reclaimed later:", err)
		return nil
	}
	return err
}
