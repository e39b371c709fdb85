package relayservice

import (
	"bufio"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/endpoint"
)

const (
	// maxID is the longest peer ID that is read, and maxSeen bounds the addresses in an answer.
	maxID   = 128
	maxSeen = 8
	// seenTime bounds a question and its answer.
	seenTime = 5 * time.Second
)

// seen answers members' questions where this relay sees another member: the question is the peer ID in a line, the answer
// the multiaddrs of its connections, each in a line. Nobody can be seen where it does not stand: the addresses are those
// of connections on which it has shown its key. So a member that is told to dial another one can tell that one's own
// addresses from those of strangers.
type seen struct {
	isMember func(peer.ID) bool
	conns    func(peer.ID) []network.Conn
	refused  func(reason string)
}

// answer answers one question. It owns the stream.
func (s *seen) answer(st network.Stream) {
	defer func() { _ = st.Reset() }()
	if !s.isMember(st.Conn().RemotePeer()) {
		s.refused("question of no member")
		return
	}
	_ = st.SetDeadline(time.Now().Add(seenTime))
	of, err := readID(st)
	if err != nil || !s.isMember(of) {
		return
	}
	var out []string
	for _, c := range slices.Backward(s.conns(of)) { // the newest first
		a := c.RemoteMultiaddr()
		if _, ok := endpoint.Target(a); ok && !c.IsClosed() && !slices.Contains(out, a.String()) && len(out) < maxSeen {
			out = append(out, a.String())
		}
	}
	if _, err := io.WriteString(st, strings.Join(out, "\n")+"\n"); err == nil {
		_ = st.Close()
		_, _ = st.Read(make([]byte, 1)) // until the other side has it, and closes
	}
}

// readID reads a question.
func readID(r io.Reader) (peer.ID, error) {
	line, err := bufio.NewReader(io.LimitReader(r, maxID)).ReadString('\n')
	if err != nil {
		return "", err
	}
	return peer.Decode(strings.TrimSuffix(line, "\n"))
}
