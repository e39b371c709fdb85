// Package chained calls again those plugins behind ours whose rules another program has removed from the host's firewall: portmap's,
// without which hostPorts lead nowhere after a reload of the firewall. It works in the node's network namespace, with what the runtime
// has cached of each ADD, and needs neither the runtime nor the pods' namespaces.
package chained

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"

	"edgemesh/cni/ipam"
	"edgemesh/cni/podlink"
	"edgemesh/internal/watchdog"
)

// inFirewall are the reference plugins whose ADD makes rules there, and none twice.
var inFirewall = []string{"portmap", "firewall"} //nolint:gochecknoglobals // a constant

// callTimeout bounds one call of a plugin.
const callTimeout = 10 * time.Second

// Network is the one whose pods are looked at.
type Network struct {
	Name     string
	BinDir   string // where the plugins are
	DataDir  string // records of the pods' addresses
	CacheDir string // where the runtime caches results (libcni.CacheDir)
}

// Restore calls CHECK of these plugins for each pod, and ADD where that fails. made are the pods for which ADD was called, failed those
// for which it fails, and why.
func (n Network) Restore(ctx context.Context) (made, failed []string, err error) {
	cni := libcni.NewCNIConfigWithCacheDir([]string{n.BinDir}, n.CacheDir, nil)
	all, err := cni.GetCachedAttachments("")
	all = slices.DeleteFunc(all, func(a *libcni.NetworkAttachment) bool { return a.Network != n.Name })
	if err != nil || len(all) == 0 {
		return nil, nil, err
	}
	living, err := podlink.Host{Store: n.DataDir}.Living() // a runtime may leave results behind
	if err != nil {
		return nil, nil, err
	}
	for _, a := range all {
		if !slices.ContainsFunc(living, func(l ipam.Living) bool { return l.Owner.ContainerID == a.ContainerID && l.Owner.IfName == a.IfName }) {
			continue
		}
		watchdog.Step(ctx)
		again, err := n.restore(ctx, cni, a)
		if again {
			made = append(made, podOf(a))
		}
		if err != nil {
			failed = append(failed, fmt.Sprintf("%s: %v", podOf(a), err))
		}
	}
	return made, failed, ctx.Err()
}

func (n Network) restore(ctx context.Context, cni *libcni.CNIConfig, a *libcni.NetworkAttachment) (again bool, err error) {
	list, err := libcni.ConfListFromBytes(a.Config)
	if err != nil {
		return false, err
	}
	result, err := cni.GetNetworkListCachedResult(list, &libcni.RuntimeConf{ContainerID: a.ContainerID, NetNS: a.NetNS, IfName: a.IfName})
	if err == nil && result == nil {
		err = errors.New("the runtime has not kept the pod's result")
	}
	if err != nil {
		return false, err
	}
	for _, p := range list.Plugins {
		if !slices.Contains(inFirewall, p.Network.Type) {
			continue
		}
		values := map[string]any{"name": list.Name, "cniVersion": list.CNIVersion, "prevResult": result}
		args := map[string]any{}
		for capability, on := range p.Network.Capabilities {
			if v, ok := a.CapabilityArgs[capability]; on && ok {
				args[capability] = v
			}
		}
		if len(args) == 0 && len(p.Network.Capabilities) > 0 {
			continue // it did nothing for this pod
		}
		values["runtimeConfig"] = args
		conf, err := libcni.InjectConf(p, values)
		if err != nil {
			return again, err
		}
		if n.call(ctx, "CHECK", a, conf) == nil {
			continue
		}
		again = true
		if err := n.call(ctx, "ADD", a, conf); err != nil {
			return again, fmt.Errorf("%s: %w", p.Network.Type, err)
		}
	}
	return again, nil
}

// call calls one plugin.
func (n Network) call(ctx context.Context, command string, a *libcni.NetworkAttachment, conf *libcni.PluginConfig) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return invoke.ExecPluginWithoutResult(ctx, filepath.Join(n.BinDir, conf.Network.Type), conf.Bytes, unseen{&invoke.Args{
		Command: command, ContainerID: a.ContainerID, NetNS: cmp.Or(a.NetNS, "/run/netns/"+a.ContainerID), PluginArgs: a.CniArgs, IfName: a.IfName, Path: n.BinDir,
	}}, nil)
}

// unseen are the arguments for a pod whose namespace an agent in a container does not see. None of these plugins enters it.
type unseen struct{ *invoke.Args }

func (u unseen) AsEnv() []string { return append(u.Args.AsEnv(), "CNI_NETNS_OVERRIDE=1") }

// podOf is a pod's NAMESPACE/NAME, or its container.
func podOf(a *libcni.NetworkAttachment) string {
	args := map[string]string{}
	for _, kv := range a.CniArgs {
		args[kv[0]] = kv[1]
	}
	if name := args["K8S_POD_NAME"]; name != "" {
		return args["K8S_POD_NAMESPACE"] + "/" + name
	}
	return a.ContainerID
}
