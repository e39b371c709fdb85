package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"edgemesh/internal/membership/mesh"
)

// CNI is the key `cni`: options of the network configuration that the agent
// installs. The zero value means the plugin's defaults. An operator who installs the
// configuration by hand (cniConfDir "") sets them there instead.
type CNI struct {
	// KeepFor is how long a deleted pod's address stays reserved for its name, as a Go
	// duration; "" means until the pool runs short.
	KeepFor string `json:"keepFor"`
	// KeepOnly says whose addresses are reserved: all (""), statefulset or none.
	KeepOnly string `json:"keepOnly"`
	// Exclude lists addresses, prefixes and ranges (first-last) that no pod gets.
	Exclude []string `json:"exclude"`
	// PromiscMode makes the bridge promiscuous instead of putting its ports into
	// hairpin mode.
	PromiscMode bool `json:"promiscMode"`
	// AllowSpoofing disables the filter on what pods send.
	AllowSpoofing bool `json:"allowSpoofing"`
	// Chained are the plugins called after ours, in this order, with their own
	// options. nil: portmap if it is installed. Empty: none.
	Chained []map[string]any `json:"chained"`
}

// pluginType is the plugin's own type in a network configuration.
const pluginType = "edgemesh-cni"

// check adds what is wrong with c to bad.
func (c CNI) check(bad *mesh.Invalid) {
	if c.KeepFor != "" {
		if d, err := time.ParseDuration(c.KeepFor); err != nil || d <= 0 {
			bad.Addf("cni.keepFor", "%q is not a positive duration such as 72h", c.KeepFor)
		}
	}
	if keep := []string{"", "all", "statefulset", "none"}; !slices.Contains(keep, c.KeepOnly) {
		bad.Addf("cni.keepOnly", "%q is not one of all, statefulset, none", c.KeepOnly)
	}
	for i, text := range c.Exclude {
		if !isRange(text) {
			bad.Addf(fmt.Sprintf("cni.exclude[%d]", i), "%q is not an address, a prefix or a range like 10.244.1.10-10.244.1.20", text)
		}
	}
	for i, p := range c.Chained {
		checkChained(bad, fmt.Sprintf("cni.chained[%d]", i), p)
	}
}

func checkChained(bad *mesh.Invalid, field string, p map[string]any) {
	name, ok := p["type"].(string)
	switch {
	case !ok || name == "":
		bad.Addf(field+".type", "missing; set it to the name of the plugin's binary, such as bandwidth")
	case strings.ContainsAny(name, "/\x00") || name == "." || name == "..":
		bad.Addf(field+".type", "%q is not the name of a plugin's binary", name)
	case name == pluginType:
		bad.Addf(field+".type", "%s is always called first; leave it out here", name)
	}
	for _, key := range []string{"name", "cniVersion", "prevResult"} {
		if _, there := p[key]; there {
			bad.Addf(field+"."+key, "is not a plugin's option, the runtime sets it; leave it out")
		}
	}
}

// isRange reports whether s is an address, a prefix, or first-last.
func isRange(s string) bool {
	if first, last, ok := strings.Cut(s, "-"); ok {
		a, errA := parseAddr(first)
		b, errB := parseAddr(last)
		return errA == nil && errB == nil && a.Is4() == b.Is4() && !b.Less(a)
	}
	if p, err := netip.ParsePrefix(s); err == nil {
		return !p.Addr().Is4In6()
	}
	_, err := parseAddr(s)
	return err == nil
}

func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(strings.TrimSpace(s))
	if err == nil && (a.Zone() != "" || a.Is4In6()) {
		err = fmt.Errorf("%s is not a plain address", s)
	}
	return a, err
}
