package paths

import (
	"time"

	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/carrier/packet"
)

// datagrams is a connection as its datagrams see it.
type datagrams struct{ c *Conn }

var _ packet.Path = datagrams{}

func (d datagrams) Peer() string           { return d.c.owner.Name() }
func (d datagrams) Addr() string           { return d.c.RemoteMultiaddr().String() }
func (d datagrams) Sent(bytes int)         { d.c.sent(bytes) }
func (d datagrams) Received(bytes int)     { d.c.received(bytes) }
func (d datagrams) Heard()                 { d.c.hear() }
func (d datagrams) Carried() uint64        { return d.c.tx.Load() }
func (d datagrams) Narrowed()              { d.c.owner.Narrowed(d.c.ID) }
func (d datagrams) Waited(t time.Duration) { d.c.waited(t) }
func (d datagrams) Broken(why string)      { d.c.owner.Apply(ladder.Broken{Path: d.c.ID, Why: why}) }

// forwarded is a circuit as the datagrams see it that its relay forwards. What arrives by UDP says little of the circuit, and what
// does not is no fault of it.
type forwarded struct{ datagrams }

func (d forwarded) Received(bytes int) { d.c.rx.Add(uint64(bytes)); d.c.hearBeside(); d.c.noticed() }
func (d forwarded) Heard()             { d.c.hearBeside() }
func (d forwarded) Narrowed()          {}
func (d forwarded) Broken(string)      {}
