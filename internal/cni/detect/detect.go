// Package detect recognises another network plugin on the node, so that the agent can
// keep it (cniMode: keep) or report the conflict.
//
// It looks at three things, and reports which it saw: the configuration that the runtime
// would use, interfaces, and annotations of the Node.
package detect

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
)

// Names of the plugins that are recognised.
const (
	Flannel = "flannel"
	Calico  = "calico"
	Cilium  = "cilium"
	Kindnet = "kindnet"
	Weave   = "weave"
	Bridge  = "bridge" // the reference bridge plugin alone
	Ours    = "edgemesh"
	Unknown = "unknown"
)

// Node is what is known of a node.
type Node struct {
	// Conf holds the files of the runtime's configuration directory by name.
	Conf map[string][]byte
	// Links are the names of the node's interfaces.
	Links []string
	// Annotations are those of the Node object; nil without an API.
	Annotations map[string]string
	// FlannelEnv is the content of /run/flannel/subnet.env, if any.
	FlannelEnv []byte
	// Blackholes are the destinations of blackhole routes: Calico holds each
	// of a node's blocks with one.
	Blackholes []netip.Prefix
}

// Found is one network plugin.
type Found struct {
	Name string
	// Active means that the runtime uses it: its configuration comes first.
	Active bool
	// Evidence says what it was recognised by.
	Evidence []string
	// PodCIDRs are the node's blocks according to this plugin, if readable.
	PodCIDRs []netip.Prefix
}

// Find lists the plugins that left traces on the node, the active one first,
// then by name.
func Find(n Node) []Found {
	f := finder{found: map[string]*Found{}}
	f.configuration(n.Conf)
	f.links(n.Links)
	f.annotations(n.Annotations)
	f.files(n)
	f.bridge(n.Links)
	var out []Found
	for _, x := range f.found {
		slices.SortFunc(x.PodCIDRs, func(a, b netip.Prefix) int { return strings.Compare(a.String(), b.String()) })
		x.PodCIDRs = slices.Compact(x.PodCIDRs)
		out = append(out, *x)
	}
	slices.SortFunc(out, func(a, b Found) int {
		if a.Active != b.Active {
			if a.Active {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out
}

type finder struct{ found map[string]*Found }

func (f *finder) saw(name, evidence string, cidrs ...netip.Prefix) *Found {
	x := f.found[name]
	if x == nil {
		x = &Found{Name: name}
		f.found[name] = x
	}
	x.Evidence = append(x.Evidence, evidence)
	x.PodCIDRs = append(x.PodCIDRs, cidrs...)
	return x
}

// configuration reads the files as a runtime does: .conf, .conflist and .json, by name;
// the first readable one is in use.
func (f *finder) configuration(files map[string][]byte) {
	var names []string
	for name := range files {
		if slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(name)) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	active := true
	for i, name := range names {
		plugins, ok := parse(files[name])
		if !ok {
			continue
		}
		kind, cidrs := classify(behind(plugins, names[i+1:], files))
		x := f.saw(kind, "configuration "+name, cidrs...)
		x.Active = x.Active || active
		active = false
	}
}

type plugin struct {
	Type string `json:"type"`
	IPAM struct {
		Type   string `json:"type"`
		Subnet string `json:"subnet"`
		Ranges [][]struct {
			Subnet string `json:"subnet"`
		} `json:"ranges"`
	} `json:"ipam"`
	// Multus': the pods' first network, as a configuration, or where that is.
	Delegates      []plugin `json:"delegates"`
	ClusterNetwork string   `json:"clusterNetwork"`
	// The list's own fields, when the file is one.
	Name    string   `json:"name"`
	Plugins []plugin `json:"plugins"`
}

func parse(b []byte) ([]plugin, bool) {
	var p plugin
	if json.Unmarshal(b, &p) != nil {
		return nil, false
	}
	if len(p.Plugins) > 0 {
		for i := range p.Plugins {
			p.Plugins[i].Name = p.Name
		}
		return p.Plugins, true
	}
	return []plugin{p}, p.Type != ""
}

// behind is the network that Multus in front of it gives to pods (its documentation, "configuration"): the first delegate, the
// clusterNetwork by name or file, or the file that comes next. Without Multus it is list.
func behind(list []plugin, next []string, files map[string][]byte) []plugin {
	m := list[0]
	if m.Type != "multus" && m.Type != "multus-shim" {
		return list
	}
	if len(m.Delegates) > 0 {
		if d := m.Delegates[0]; len(d.Plugins) > 0 {
			d.Plugins[0].Name = d.Name
			return d.Plugins
		}
		return m.Delegates[:1]
	}
	wanted := filepath.Base(m.ClusterNetwork)
	var first []plugin
	for _, name := range next {
		l, ok := parse(files[name])
		if ok && m.ClusterNetwork != "" && (wanted == name || wanted == l[0].Name) {
			return l
		}
		if ok && first == nil {
			first = l
		}
	}
	if m.ClusterNetwork == "edgemesh" || wanted == "10-edgemesh.conflist" { // which is not there yet
		return []plugin{{Type: "edgemesh-cni"}}
	}
	if first != nil {
		return first
	}
	return list
}

// classify identifies a list by its first plugin; kindnet uses the reference ptp plugin
// and is identified by the list's name.
func classify(list []plugin) (kind string, cidrs []netip.Prefix) {
	first := list[0]
	cidrs = prefixes(first.IPAM.Subnet)
	for _, set := range first.IPAM.Ranges {
		for _, r := range set {
			cidrs = append(cidrs, prefixes(r.Subnet)...)
		}
	}
	kind, known := byType[first.Type]
	switch {
	case kind != Ours && first.Name == "kindnet":
		return Kindnet, cidrs
	case known:
		return kind, nil
	case strings.HasPrefix(first.Type, "cilium"):
		return Cilium, nil
	case first.Type == "bridge":
		return Bridge, cidrs
	}
	return Unknown, cidrs
}

// byType are the plugins that have a program of their own; the reference plugins' blocks
// are in the configuration.
var byType = map[string]string{"edgemesh-cni": Ours, "flannel": Flannel, "calico": Calico, "weave-net": Weave}

func (f *finder) links(names []string) {
	for _, name := range names {
		switch name {
		case "flannel.1", "flannel-v6.1", "flannel-wg":
			f.saw(Flannel, "interface "+name)
		case "vxlan.calico", "wireguard.cali":
			f.saw(Calico, "interface "+name)
		case "cilium_host", "cilium_vxlan", "cilium_wg0":
			f.saw(Cilium, "interface "+name)
		case "weave":
			f.saw(Weave, "interface "+name)
		}
	}
	// Pods' interfaces, of which there may be many.
	if slices.ContainsFunc(names, func(name string) bool { return hashed(name, "cali", 11) }) {
		f.saw(Calico, "interfaces cali…")
	}
	if slices.ContainsFunc(names, func(name string) bool { return hashed(name, "lxc", 12) }) {
		f.saw(Cilium, "interfaces lxc…")
	}
}

// hashed reports whether name is prefix followed by a hash of as many hex digits.
func hashed(name, prefix string, digits int) bool {
	rest, ok := strings.CutPrefix(name, prefix)
	return ok && len(rest) == digits && strings.Trim(rest, "0123456789abcdef") == ""
}

// bridge attributes cni0 to the reference bridge plugin, unless Flannel, which also uses
// it, was found.
func (f *finder) bridge(links []string) {
	const usual = "cni0"
	if _, flannel := f.found[Flannel]; !flannel && slices.Contains(links, usual) {
		f.saw(Bridge, "interface "+usual)
	}
}

func (f *finder) annotations(a map[string]string) {
	for _, known := range []struct{ key, plugin string }{
		{"flannel.alpha.coreos.com/backend-type", Flannel},
		{"projectcalico.org/IPv4Address", Calico},
		{"network.cilium.io/ipv4-pod-cidr", Cilium},
		{"network.cilium.io/ipv6-pod-cidr", Cilium},
		{"io.cilium.network.ipv4-pod-cidr", Cilium}, // before Cilium 1.12
		{"io.cilium.network.ipv6-pod-cidr", Cilium},
	} {
		if v, ok := a[known.key]; ok {
			x := f.saw(known.plugin, "annotation "+known.key)
			if known.plugin == Cilium {
				x.PodCIDRs = append(x.PodCIDRs, prefixes(v)...)
			}
		}
	}
}

// files reads what Flannel and Calico leave outside the configuration.
func (f *finder) files(n Node) {
	for line := range bytes.Lines(n.FlannelEnv) {
		key, v, _ := strings.Cut(strings.TrimSpace(string(line)), "=")
		if key == "FLANNEL_SUBNET" || key == "FLANNEL_IPV6_SUBNET" {
			f.saw(Flannel, "/run/flannel/subnet.env", prefixes(v)...)
		}
	}
	if calico, ok := f.found[Calico]; ok {
		calico.PodCIDRs = append(calico.PodCIDRs, n.Blackholes...)
	}
}

// prefixes parses a comma-separated list and skips what is not a prefix.
func prefixes(s string) []netip.Prefix {
	var out []netip.Prefix
	for _, x := range strings.Split(s, ",") {
		if p, err := netip.ParsePrefix(strings.TrimSpace(x)); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}
