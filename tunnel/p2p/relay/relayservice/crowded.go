package relayservice

import (
	"io"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/who/identity"
)

// answerTime bounds an answer.
const answerTime = 5 * time.Second

// crowding answers members whether this relay holds more reservations than its share, on the second line of the answer. The
// first one was how much of the relay is in use, in percent; peers of former versions take LoadUnknown for a relay that does
// not know it.
type crowding struct {
	isMember func(peer.ID) bool
	refused  func(reason string, p peer.ID, from string)
	crowded  func() bool
	budgets  budgets
}

// answer answers one query. It owns the stream.
func (c *crowding) answer(st network.Stream) {
	defer func() { _ = st.Reset() }()
	by, from := st.Conn().RemotePeer(), st.Conn().RemoteMultiaddr().String()
	switch {
	case !c.isMember(by):
		c.refused("question of no member", by, from)
		return
	case !c.budgets.take(by, time.Now()):
		c.refused("too many questions", by, from)
		return
	}
	_ = st.SetDeadline(time.Now().Add(answerTime))
	text := identity.LoadUnknown + "\n"
	if c.crowded() {
		text += identity.LoadCrowded + "\n"
	}
	if _, err := io.WriteString(st, text); err == nil {
		_ = st.Close()
		_, _ = st.Read(make([]byte, 1)) // until the other side has it, and closes
	}
}
