package sense

import (
	"net/netip"
	"slices"

	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/ladder"
)

// Judge says what the NAT does by where relays see the listening sockets alone, which
// are at local on this host; perDest: two relays see one socket at different ports.
func Judge(seen, local []endpoint.Endpoint, perDest bool) ladder.NAT {
	if len(seen) == 0 {
		return ladder.NATUnknown
	}
	if perDest {
		return ladder.NATRandom
	}
	none, kept := true, true
	outside := map[[2]bool]netip.Addr{} // by transport and IP version
	for _, s := range seen {
		if slices.Contains(local, s) {
			continue
		}
		if s.Addr.Addr().IsPrivate() { // of a relay inside the site, or behind another of its routers
			continue
		}
		of := [2]bool{s.UDP, s.Addr.Addr().Is6()}
		if a, ok := outside[of]; ok && a != s.Addr.Addr() { // a pool: a peer may see a third one
			return ladder.NATRandom
		}
		outside[of] = s.Addr.Addr()
		none = false
		kept = kept && slices.ContainsFunc(local, func(l endpoint.Endpoint) bool {
			return l.UDP == s.UDP && l.Addr.Port() == s.Addr.Port()
		})
	}
	switch {
	case none:
		return ladder.NATNone
	case kept:
		return ladder.NATStable
	default:
		return ladder.NATUnknown
	}
}

// Text names a NAT as JSON, log and map do, and says what it does.
func Text(k ladder.NAT) string {
	switch k {
	case ladder.NATNone:
		return "no NAT"
	case ladder.NATStable:
		return "stable: one port for all destinations"
	case ladder.NATSequential:
		return "sequential: each destination gets the next port"
	case ladder.NATRandom:
		return "random: each destination gets another port or another outside address"
	default:
		return "unknown: it changes ports, or no relay answers"
	}
}
