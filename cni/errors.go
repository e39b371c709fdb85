package main

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"edgemesh/internal/cni/antispoof"
	"edgemesh/internal/cni/calls"
	"edgemesh/internal/cni/closing"
	"edgemesh/internal/cni/conf"
	"edgemesh/internal/cni/ipam"
	"edgemesh/internal/cni/overlap"
	"edgemesh/internal/cni/podlink"
)

// Error codes of our own; the specification leaves those from 100 on to plugins.
const (
	codeFull        = 100 // every address is in use
	codeWanted      = 101 // the requested address is not available
	codeUnsupported = 102 // the kernel is missing a feature
	codeOverlap     = 103 // pod addresses are in use elsewhere on the node
	codeDiffers     = 104 // CHECK found a difference
	codeAttached    = 105 // ADD for an interface that exists
	codeElsewhere   = 106 // the agent reads the records of another directory
)

var errNetNS = errors.New("network namespace of the container")

// remedy is the code that a runtime gets for a cause, and the advice for its operator.
type remedy struct {
	err  error
	code uint
	text string
}

// remedies lists the causes; the first that matches counts.
func remedies() []remedy {
	return []remedy{
		{conf.ErrNetConf, types.ErrInvalidNetworkConfig, "correct the network configuration (a file in /etc/cni/net.d)"},
		{conf.ErrArgs, types.ErrInvalidEnvironmentVariables, "correct the program that calls the plugin, or the pod's annotations that it puts into CNI_ARGS"},
		{conf.ErrNoSubnet, types.ErrTryAgainLater, "edgemesh-agent writes the file when it starts: check that it runs on this node"},
		{conf.ErrElsewhere, codeElsewhere, "set dataDir in the network configuration, or cniDataDir in agent.yaml, to the other's"},
		{errNetNS, types.ErrInvalidNetNS, "CNI_NETNS must be the path of the container's own network namespace"},
		{overlap.ErrOverlap, codeOverlap, "remove the other network or its addresses, or give the cluster another pod range"},
		{closing.ErrRefused, types.ErrPluginNotAvailable, "`edgemesh-agent status` says why; networkPolicy: off runs pods without policies"},
		{podlink.ErrDiffers, codeDiffers, "restart the pod: it gets the same address again"},
		{podlink.ErrAttached, codeAttached, "call DEL for the container first"},
		{ipam.ErrBusy, types.ErrTryAgainLater, "another call holds the lock; the runtime tries again"},
		{ipam.ErrLost, types.ErrTryAgainLater, "nothing to do: the newer container has the address"},
		{ipam.ErrShared, types.ErrTryAgainLater, "nothing to do: the runtime tries again and gets another address"},
		{ipam.ErrFull, codeFull, "delete pods of this node, or give it a larger or an additional block"},
		{ipam.ErrWanted, codeWanted, "request another address, or none"},
		{antispoof.ErrUnsupported, codeUnsupported, `use a kernel with BPF, or set "allowSpoofing": true to run without the filter`},
		{syscall.ENOSPC, types.ErrIOFailure, "free space on the file system of dataDir; no address was lost"},
		{syscall.EDQUOT, types.ErrIOFailure, "free space on the file system of dataDir; no address was lost"},
		{syscall.EROFS, types.ErrIOFailure, "the file system of dataDir must be writable"},
		{syscall.ENOTDIR, types.ErrIOFailure, "a file is in the place of dataDir: remove it, or set another dataDir"},
		{syscall.EIO, types.ErrIOFailure, "check the kernel's log: the disk that holds dataDir may be failing"},
		{syscall.EACCES, types.ErrIOFailure, "run the plugin as root, with access to dataDir"},
		{syscall.EPERM, types.ErrInternal, "run the plugin as root with CAP_NET_ADMIN"},
	}
}

// coded is run with the errors that a runtime expects. What came of it is left for the agent.
func coded(verb string, run func(*skel.CmdArgs) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		start := time.Now()
		err := run(args)
		note := calls.Call{Verb: verb, Result: calls.OK, Took: time.Since(start)}
		if err != nil {
			e := asError(verb, err)
			note.Result, err = result(e.Code), e
		}
		if c, perr := conf.ParseNetConf(args.StdinData); perr == nil {
			_ = calls.Note(c.RuntimeDir, note) // a pod is worth more than a number
		}
		return err
	}
}

// result is a code as metrics have it.
func result(code uint) string {
	switch code {
	case types.ErrTryAgainLater:
		return calls.TryAgain
	case codeFull:
		return calls.Full
	case codeOverlap:
		return calls.Overlap
	}
	return calls.Failed
}

// asError gives err its code, and the remedy as details.
func asError(verb string, err error) *types.Error {
	msg := fmt.Sprintf("edgemesh-cni: %s: %v", verb, err)
	for _, r := range remedies() {
		if errors.Is(err, r.err) {
			return types.NewError(r.code, msg, r.text)
		}
	}
	return types.NewError(types.ErrInternal, msg, "")
}
