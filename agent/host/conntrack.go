package host

import (
	"strconv"

	"edgemesh/agent/findings"
	"edgemesh/agent/host/sysctl"
	"edgemesh/internal/wording"
)

// Conntrack warns when the kernel's table of connections is full, or nearly: it then drops the first packet of each new one, of pods
// and of the agent's own, and counts it nowhere that an operator looks.
func Conntrack() []findings.Finding {
	var n [2]uint64
	for i, key := range []string{"net/netfilter/nf_conntrack_count", "net/netfilter/nf_conntrack_max"} {
		text, err := sysctl.Read(key)
		if err == nil {
			n[i], err = strconv.ParseUint(text, 10, 64)
		}
		if err != nil {
			return nil // there is no such table
		}
	}
	return conntrack(n[0], n[1])
}

// conntrack judges how many entries of the most there are.
func conntrack(entries, most uint64) []findings.Finding {
	const nearly = 95 // percent
	if most == 0 || 100*entries < most*nearly {
		return nil
	}
	return []findings.Finding{findings.Warningf("conntrack", remedyOf("conntrack"),
		"the kernel's table of connections has %s of at most %d: when it is full, new connections of this host and its pods are dropped", wording.Count(entries, "entry", "entries"), most)}
}
