package sense

import (
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
	for _, s := range seen {
		if slices.Contains(local, s) {
			continue
		}
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

// Text says in words what a NAT does.
func Text(k ladder.NAT) string {
	switch k {
	case ladder.NATNone:
		return "no NAT"
	case ladder.NATStable:
		return "a NAT with one port for all destinations"
	case ladder.NATSequential:
		return "a NAT that maps per destination, in sequence"
	case ladder.NATRandom:
		return "a NAT that maps per destination"
	default:
		return "a NAT that changes ports, or an unknown one"
	}
}
