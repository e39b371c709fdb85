package peers

import "edgemesh/tunnel/p2p/path/paths"

// Carried is bytes, of streams and datagrams.
type Carried struct{ Tx, Rx uint64 }

// carried adds up what all paths have carried, by kind. A path's bytes count for the kind that it has when they are read, so
// that no sum ever falls. The registry's mu guards it.
type carried struct {
	total map[paths.Kind]Carried
	read  map[*paths.Conn]Carried // of paths that are up
}

// note adds what x has carried since it was read last.
func (c *carried) note(x *paths.Conn) {
	tx, rx := x.Carried()
	kind := x.Path().Kind
	if c.total == nil {
		c.total, c.read = map[paths.Kind]Carried{}, map[*paths.Conn]Carried{}
	}
	sum, was := c.total[kind], c.read[x]
	c.total[kind] = Carried{sum.Tx + tx - was.Tx, sum.Rx + rx - was.Rx}
	c.read[x] = Carried{tx, rx}
}

// end is note, for a path that has ended.
func (c *carried) end(x *paths.Conn) {
	c.note(x)
	delete(c.read, x)
}
