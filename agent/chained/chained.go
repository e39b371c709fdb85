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
)

// inFirewall are the reference plugins whose ADD makes rules there, and none twice.
var inFirewall = []string{"portmap", "firewall"} //nolint:gochecknoglobals // a constant

// callTimeout bounds one call of a plugin.
const callTimeout = 10 * time.Second

// Network is the one whose pods are looked at.
type Network struct {
	Name     string
	BinDir   string                        // where the plugins are
	CacheDir string                        // where the runtime caches results (libcni.CacheDir)
	Living   func() ([]ipam.Living, error) // the attachments that there are: a runtime may leave results behind
}

// multusDir, below the runtime's cache, is that of Multus for the networks that it delegates to (its key cniDir).
const multusDir = "multus"

// Again is an attachment whose plugins' ADD was called again.
type Again struct {
	ID  string // of the attachment
	Pod string // NAMESPACE/NAME, or its container
	Err error  // why its rules are not back, nil when they are

	at     *libcni.NetworkAttachment
	called []*libcni.PluginConfig
}

// Restore calls CHECK of these plugins for each pod, and ADD where that fails.
func (n Network) Restore(ctx context.Context) (again []Again, err error) {
	var all []*libcni.NetworkAttachment
	cnis := map[*libcni.NetworkAttachment]*libcni.CNIConfig{}
	for _, dir := range []string{n.CacheDir, filepath.Join(n.CacheDir, multusDir)} {
		cni := libcni.NewCNIConfigWithCacheDir([]string{n.BinDir}, dir, nil)
		cached, err := cni.GetCachedAttachments("")
		if err != nil {
			return nil, err
		}
		for _, a := range cached {
			if a.Network == n.Name {
				all, cnis[a] = append(all, a), cni
			}
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	living, err := n.Living()
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		if !lives(living, a) {
			continue
		}
		called, err := n.restore(ctx, cnis[a], a)
		if len(called) > 0 || err != nil {
			again = append(again, Again{ID: a.ContainerID + " " + a.IfName, Pod: podOf(a), Err: err, at: a, called: called})
		}
	}
	return again, ctx.Err()
}

// Forget calls DEL for those whose pods are gone: their own DEL may have been before the ADD, and the rules would lead to whoever has
// the address next. It returns those whose DEL failed.
func (n Network) Forget(ctx context.Context, again []Again) (left []Again, err error) {
	living, err := n.Living()
	if err != nil {
		return again, err
	}
	for _, x := range again {
		if lives(living, x.at) {
			continue
		}
		var failed error
		for _, conf := range slices.Backward(x.called) {
			failed = errors.Join(failed, n.call(ctx, "DEL", x.at, conf))
		}
		if failed != nil {
			left, err = append(left, x), errors.Join(err, fmt.Errorf("%s: %w", x.Pod, failed))
		}
	}
	return left, err
}

func lives(all []ipam.Living, a *libcni.NetworkAttachment) bool {
	return slices.ContainsFunc(all, func(l ipam.Living) bool { return l.Owner.ContainerID == a.ContainerID && l.Owner.IfName == a.IfName })
}

// restore returns those plugins whose ADD was called.
func (n Network) restore(ctx context.Context, cni *libcni.CNIConfig, a *libcni.NetworkAttachment) (called []*libcni.PluginConfig, err error) {
	list, err := libcni.ConfListFromBytes(a.Config)
	if err != nil {
		return nil, err
	}
	result, err := cni.GetNetworkListCachedResult(list, &libcni.RuntimeConf{ContainerID: a.ContainerID, NetNS: a.NetNS, IfName: a.IfName})
	if err == nil && result == nil {
		err = errors.New("the runtime has not kept the pod's result")
	}
	if err != nil {
		return nil, err
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
			return called, err
		}
		if n.call(ctx, "CHECK", a, conf) == nil {
			continue
		}
		if living, err := n.Living(); err != nil || !lives(living, a) { // it may have gone since, and its rules with it
			return called, err
		}
		called = append(called, conf)
		if err := n.call(ctx, "ADD", a, conf); err != nil {
			return called, fmt.Errorf("%s: %w", p.Network.Type, err)
		}
	}
	return called, nil
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
