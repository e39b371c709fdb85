package paths

import (
	"time"

	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/carrier/packet"
)

// beside is a connection as the sealed packets beside it see it.
type beside struct{ c *Conn }

var _ packet.Path = beside{}

func (d beside) Peer() string           { return d.c.owner.Name() }
func (d beside) Addr() string           { return d.c.RemoteMultiaddr().String() }
func (d beside) Sent(bytes int)         { d.c.sent(bytes) }
func (d beside) Received(bytes int)     { d.c.received(bytes) }
func (d beside) Heard()                 { d.c.hear() }
func (d beside) Carried() uint64        { return d.c.tx.Load() }
func (d beside) Narrowed()              { d.c.owner.Narrowed(d.c.ID) }
func (d beside) Waited(t time.Duration) { d.c.waited(t) }
func (d beside) Broken(why string)      { d.c.owner.Apply(ladder.Broken{Path: d.c.ID, Why: why}) }

// forwarded is a circuit as the sealed packets see it that its relay forwards. What arrives by UDP says little of the circuit, and what
// does not is no fault of it.
type forwarded struct{ beside }

func (d forwarded) Received(bytes int) { d.c.rx.Add(uint64(bytes)); d.c.hearBeside(); d.c.noticed() }
func (d forwarded) Heard()             { d.c.hearBeside() }
func (d forwarded) Narrowed()          {}
func (d forwarded) Broken(string)      {}
