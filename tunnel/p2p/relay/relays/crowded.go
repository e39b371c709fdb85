package relays

import (
	"bufio"
	"context"
	"io"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/who/identity"
)

const (
	// crowdedPatience bounds a query of whether a relay is crowded, and crowdedBytes its answer.
	crowdedPatience = 5 * time.Second
	crowdedBytes    = 16
)

// checkCrowded notes whether the relay is crowded, and returns it. One that does not answer is not.
func (c *client) checkCrowded() (crowded bool) {
	ends := c.conns()
	if len(ends) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(c.ctx, crowdedPatience)
	defer cancel()
	crowded = queryCrowded(ctx, ends[0])
	c.outcome.setCrowded(crowded)
	return crowded
}

// queryCrowded queries one relay.
func queryCrowded(ctx context.Context, relay network.Conn) bool {
	st, err := conns.Open(ctx, relay, identity.LoadProtocol)
	if err != nil {
		return false
	}
	defer func() { _ = st.Reset() }()
	deadline, _ := ctx.Deadline()
	_ = st.SetDeadline(deadline)
	return st.CloseWrite() == nil && parseCrowded(st)
}

// parseCrowded reads an answer. The first line is ignored: relays of former versions say there how much of them is in use.
func parseCrowded(r io.Reader) bool {
	in := bufio.NewReader(io.LimitReader(r, crowdedBytes))
	if _, err := in.ReadString('\n'); err != nil {
		return false
	}
	line, _ := in.ReadString('\n')
	return line == identity.LoadCrowded+"\n"
}
