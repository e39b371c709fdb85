package members

import (
	"hash/maphash"
	"maps"

	"github.com/libp2p/go-libp2p/core/peer"
)

// names are the members' names by ID. It is never changed; with makes another one that shares what is the same, so that a
// member that comes costs a part of the map and not all of it.
type names struct {
	seed  maphash.Seed
	parts []map[peer.ID]string // by hash; nil: empty
	count int
}

// parts is how many parts there are: of 100,000 names each has a hundred.
const parts = 1024

func newNames() names {
	return names{seed: maphash.MakeSeed(), parts: make([]map[peer.ID]string, parts)}
}

func (n names) part(p peer.ID) int { return int(maphash.String(n.seed, string(p)) % parts) }

// get returns p's name, and whether it has one.
func (n names) get(p peer.ID) (string, bool) {
	s, ok := n.parts[n.part(p)][p]
	return s, ok
}

// with is n without those that are gone, and with those that come.
func (n names) with(gone []peer.ID, come []Member) names {
	n.parts = append([]map[peer.ID]string(nil), n.parts...)
	own := map[int]bool{} // parts that are n's alone
	part := func(p peer.ID) map[peer.ID]string {
		i := n.part(p)
		if !own[i] {
			own[i] = true
			if n.parts[i] = maps.Clone(n.parts[i]); n.parts[i] == nil {
				n.parts[i] = map[peer.ID]string{}
			}
		}
		return n.parts[i]
	}
	for _, p := range gone {
		m := part(p)
		n.count -= len(m)
		delete(m, p)
		n.count += len(m)
	}
	for _, x := range come {
		m := part(x.ID)
		n.count -= len(m)
		m[x.ID] = x.Name
		n.count += len(m)
	}
	return n
}

// Member is a node of the cluster.
type Member struct {
	Name string // for logs
	ID   peer.ID
}
