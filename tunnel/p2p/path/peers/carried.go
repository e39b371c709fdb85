package peers

import (
	"maps"

	"edgemesh/tunnel/p2p/path/paths"
)

// Carried is bytes, of streams and datagrams.
type Carried struct{ Tx, Rx uint64 }

// carried adds up what all paths have carried, by kind. A path's bytes count for the kind that it has when they are read, so
// that no sum ever falls. The registry's mu guards it.
type carried struct {
	total map[paths.Kind]Carried
	read  map[*located]Carried // of paths that are up
}

// note adds what x has carried since it was read last.
func (c *carried) note(x *located) {
	tx, rx := x.Carried()
	kind := x.Path().Kind
	if c.total == nil {
		c.total, c.read = map[paths.Kind]Carried{}, map[*located]Carried{}
	}
	sum, was := c.total[kind], c.read[x]
	c.total[kind] = Carried{sum.Tx + tx - was.Tx, sum.Rx + rx - was.Rx}
	c.read[x] = Carried{tx, rx}
}

// end is note, for a path that has ended.
func (c *carried) end(x *located) {
	c.note(x)
	delete(c.read, x)
}

// CarriedBy is what all paths of t have carried, by kind.
func CarriedBy(t *Table) map[paths.Kind]Carried {
	r := &t.registry
	r.mu.Lock() // none ends meanwhile
	defer r.mu.Unlock()
	for _, x := range r.conns {
		r.carried.note(x)
	}
	return maps.Clone(r.carried.total)
}
