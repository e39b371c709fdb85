package daemon

import (
	"slices"
	"time"

	"edgemesh/agent/mesh"
)

// underlayDebounce is how long after a node's first private address another one may still
// decide which IP version VXLAN's outer packets have: while a host boots, IPv6
// addresses come by advertisements before IPv4's do by DHCP.
const underlayDebounce = time.Minute

// outerVersion is the IP version of VXLAN's outer packets.
type outerVersion struct {
	v6    bool
	first time.Time // when there were private addresses for the first time
}

// choose decides on it: IPv6 if there is nothing else. It reports whether the decision has
// changed; an uplink that comes up late, such as a modem, does not change it.
func (o *outerVersion) choose(uplinks []mesh.Uplink, now time.Time) bool {
	if len(uplinks) == 0 {
		return false
	}
	before := o.v6
	only6 := !slices.ContainsFunc(uplinks, func(u mesh.Uplink) bool { return u.Addr.Is4() })
	switch {
	case o.first.IsZero():
		o.first, o.v6 = now, only6
	case now.Sub(o.first) < underlayDebounce:
		o.v6 = o.v6 && only6
	}
	return o.v6 != before
}
