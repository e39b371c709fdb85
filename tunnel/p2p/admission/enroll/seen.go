package enroll

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/who/identity"
)

// maxPresence is the longest answer that is read.
const maxPresence = 64

// ErrNoAnswer means that a relay does not report whether it sees a member: it is not connected, or of a former release.
var ErrNoAnswer = errors.New("the relay does not say whether it sees the member")

// Sees reports whether a relay that this controller is connected to sees a member.
func (c *Controller) Sees(ctx context.Context, relay, member peer.ID) (bool, error) {
	st, err := c.host.NewStream(network.WithNoDial(ctx, "only where it has a reservation"), relay, identity.SeenProtocol)
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	defer func() { _ = st.Reset() }()
	if deadline, ok := ctx.Deadline(); ok {
		_ = st.SetDeadline(deadline)
	}
	if _, err := io.WriteString(st, member.String()+"\n"); err != nil {
		return false, fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	line, err := bufio.NewReader(io.LimitReader(st, maxPresence)).ReadString('\n')
	switch strings.TrimSuffix(line, "\n") {
	case identity.Here:
		return true, nil
	case identity.Away:
		return false, nil
	}
	return false, errors.Join(ErrNoAnswer, err)
}
