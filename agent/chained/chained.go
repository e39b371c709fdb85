// Package chained calls again those plugins behind ours whose rules another program has removed from the host's firewall: portmap's,
// without which hostPorts lead nowhere after a reload of the firewall. It works in the node's network namespace, with what the runtime
// has cached of each ADD, and needs neither the runtime nor the pods' namespaces: none of these plugins enters one. So it works in a
// container, too, where plugins find other iptables than on the host, and a /proc/sys that is read-only.
package chained

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"edgemesh/internal/cni/ipam"
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
	Unhooked func() []string               // the plugins to whose rules no jump leads, which CHECK does not see; nil: none
	// Programs are directories with the iptables that plugins may have used, those that they are to use first; nil: those of PATH.
	Programs []string
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
	var unhooked []string
	if n.Unhooked != nil {
		unhooked = n.Unhooked()
	}
	for _, a := range all {
		if !lives(living, a) {
			continue
		}
		called, err := n.restore(ctx, cnis[a], a, unhooked)
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
			for _, programs := range n.programs() {
				failed = errors.Join(failed, n.call(ctx, programs, "DEL", x.at, conf))
			}
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
func (n Network) restore(ctx context.Context, cni *libcni.CNIConfig, a *libcni.NetworkAttachment, unhooked []string) (called []*libcni.PluginConfig, err error) {
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
		if !slices.Contains(unhooked, p.Network.Type) && n.holds(ctx, a, conf) {
			continue
		}
		if living, err := n.Living(); err != nil || !lives(living, a) { // it may have gone since, and its rules with it
			return called, err
		}
		called = append(called, conf)
		if err := n.add(ctx, a, p, conf, values, result); err != nil {
			return called, fmt.Errorf("%s: %w", p.Network.Type, err)
		}
	}
	return called, nil
}

// programs has at least one element.
func (n Network) programs() []string {
	if len(n.Programs) == 0 {
		return []string{""}
	}
	return n.Programs
}

// holds reports whether a plugin finds its rules, with whichever programs.
func (n Network) holds(ctx context.Context, a *libcni.NetworkAttachment, conf *libcni.PluginConfig) bool {
	return slices.ContainsFunc(n.programs(), func(programs string) bool { return n.call(ctx, programs, "CHECK", a, conf) == nil })
}

// add calls a plugin's ADD. Where /proc/sys is read-only, portmap ends at route_localnet, which is still set: IPv4's rules are back
// then, and IPv6's come with a call that knows no IPv4 address.
func (n Network) add(ctx context.Context, a *libcni.NetworkAttachment, p, conf *libcni.PluginConfig, values map[string]any, result types.Result) error {
	programs := n.programs()[0]
	failed := n.call(ctx, programs, "ADD", a, conf)
	if failed == nil {
		return nil
	}
	rest, err := onlyIPv6(result)
	if err != nil {
		return failed
	}
	values = maps.Clone(values)
	values["prevResult"] = rest
	if rest, err := libcni.InjectConf(p, values); err != nil || n.call(ctx, programs, "ADD", a, rest) != nil || n.call(ctx, programs, "CHECK", a, conf) != nil {
		return failed
	}
	return nil
}

// onlyIPv6 is a result without its IPv4 addresses.
func onlyIPv6(r types.Result) (types.Result, error) {
	out, err := current.NewResultFromResult(r)
	if err != nil {
		return nil, err
	}
	rest := *out
	rest.IPs = slices.DeleteFunc(slices.Clone(out.IPs), func(ip *current.IPConfig) bool { return ip.Address.IP.To4() != nil })
	return rest.GetAsVersion(r.Version())
}

// call calls one plugin, whose PATH begins with programs.
func (n Network) call(ctx context.Context, programs, command string, a *libcni.NetworkAttachment, conf *libcni.PluginConfig) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return invoke.ExecPluginWithoutResult(ctx, filepath.Join(n.BinDir, conf.Network.Type), conf.Bytes, unseen{&invoke.Args{
		Command: command, ContainerID: a.ContainerID, NetNS: cmp.Or(a.NetNS, "/run/netns/"+a.ContainerID), PluginArgs: a.CniArgs, IfName: a.IfName, Path: n.BinDir,
	}, programs}, nil)
}

// unseen are the arguments for a pod whose namespace an agent in a container does not see.
type unseen struct {
	*invoke.Args
	programs string
}

func (u unseen) AsEnv() []string {
	env := append(u.Args.AsEnv(), "CNI_NETNS_OVERRIDE=1")
	if u.programs != "" {
		env = append(env, "PATH="+u.programs+":"+os.Getenv("PATH"))
	}
	return env
}

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
