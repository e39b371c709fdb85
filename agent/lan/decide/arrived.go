package decide

import (
	"net/netip"

	"edgemesh/internal/membership/mesh"
)

// arrived is what has come in past the tunnel.
type arrived struct {
	inlets   map[mesh.Inlet]mesh.Count // as counted last
	received map[mesh.PathKind]uint64  // bytes, of all peers
}

// count adds what has come in since the counters were read last. One that is lower than before was set again.
func (a *arrived) count(counts map[mesh.Inlet]mesh.Count, owners map[netip.Prefix]*peer) {
	for in, n := range counts {
		if in.Out {
			continue
		}
		more := n.Bytes - a.inlets[in].Bytes
		if n.Bytes < a.inlets[in].Bytes {
			more = n.Bytes
		}
		a.received[kindOf(in)] += more
		if p := owners[in.Block]; p != nil {
			p.received += more
		}
	}
	a.inlets = counts
}

// kindOf is the path on which packets arrive there.
func kindOf(in mesh.Inlet) mesh.PathKind {
	if in.Link == "" {
		return mesh.VXLAN
	}
	return mesh.Native
}
