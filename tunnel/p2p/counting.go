package p2p

import (
	"net"

	"edgemesh/internal/upkeep"
)

// counting counts the queries of what the NAT does.
type counting struct {
	net.PacketConn
	budget *upkeep.Budget
}

func (c counting) WriteTo(b []byte, to net.Addr) (int, error) {
	n, err := c.PacketConn.WriteTo(b, to)
	if err == nil {
		c.budget.Add(upkeep.NAT, n+upkeep.Header, 0)
	}
	return n, err //nolint:wrapcheck // the connection's own
}

func (c counting) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := c.PacketConn.ReadFrom(b)
	if err == nil {
		c.budget.Add(upkeep.NAT, 0, n+upkeep.Header)
	}
	return n, from, err //nolint:wrapcheck // the connection's own
}
