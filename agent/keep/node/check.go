package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"edgemesh/agent/control"
	"edgemesh/cni/detect"
	"edgemesh/cni/overlap"
)

// Check judges other plugins: in the way of ours, or, in keep mode, what
// the node's pods rely on, with the blocks the membership has for them.
func Check(found []detect.Found, keep bool, blocks []netip.Prefix) control.Finding {
	const check = "cniMode"
	others := slices.DeleteFunc(slices.Clone(found), func(f detect.Found) bool { return f.Name == detect.Ours })
	if len(others) == 0 {
		if keep {
			return control.Warningf(check, "install the plugin whose pods this node has, or set cniMode: own",
				"cniMode is keep, and no other network plugin is found")
		}
		return control.Okayf(check, "own: no other network plugin is found")
	}
	var names []string
	for _, f := range others {
		names = append(names, fmt.Sprintf("%s (%s)", f.Name, strings.Join(f.Evidence, ", ")))
	}
	text := strings.Join(names, "; ")
	first := others[0]
	switch {
	case !keep && first.Active:
		return control.Brokenf(check, "remove its configuration, or set cniMode: keep to leave the pods with it",
			"the runtime uses another network plugin, its configuration comes before ours: %s", text)
	case !keep:
		return control.Warningf(check, "remove what is left of it, and its interfaces by a reboot", "traces of another network plugin: %s", text)
	}
	if strange := foreign(first.PodCIDRs, blocks); len(strange) > 0 {
		return control.Brokenf(check, "make the membership's podCIDRs of this node those of the plugin, or the plugin's those of the membership",
			"%s gives pods addresses of %v, the membership says that this node owns %v", first.Name, strange, blocks)
	}
	if !slices.Contains([]string{detect.Bridge, detect.Flannel, detect.Kindnet, detect.Calico}, first.Name) {
		return control.Warningf(check, "test it, and set cniMode: own if pods do not reach others",
			"keep: the pods stay with %s; it may not rely on the host's routes, as cniMode: keep does", text)
	}
	return control.Okayf(check, "keep: the pods stay with %s", text)
}

// foreign lists the prefixes that are not within any of blocks.
func foreign(prefixes, blocks []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool {
		return slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b.Bits() <= p.Bits() && b.Overlaps(p) })
	})
}

// Beside leaves out routes, and addresses inside blocks.
func Beside(conflicts []overlap.Conflict, blocks []netip.Prefix) []overlap.Conflict {
	return slices.DeleteFunc(conflicts, func(c overlap.Conflict) bool {
		return c.Route || slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b.Contains(c.Other.Addr()) })
	})
}
