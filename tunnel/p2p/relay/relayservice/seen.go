package relayservice

import (
	"bufio"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/time/rate"

	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/who/identity"
)

const (
	// maxID is the longest peer ID that is read, and maxSeen bounds the addresses in an answer.
	maxID   = 128
	maxSeen = 8
	// seenTime bounds a question and its answer.
	seenTime = 5 * time.Second
	// A member may ask askBurst questions in a row, then one every askEvery: a node that meets a whole large cluster
	// asks fewer. Above maxAskers the budgets that are full again are forgotten.
	askBurst  = 1024
	askEvery  = 50 * time.Millisecond
	maxAskers = 256
)

// seen answers members' questions where this relay sees another member: the question is the peer ID in a line, the answer
// the multiaddrs of its connections, each in a line. Nobody can be seen where it does not stand: the addresses are those
// of connections on which it has shown its key. So a member that is told to dial another one can tell that one's own
// addresses from those of strangers.
//
// A controller is told only whether the member is here: identity.Here or identity.Away in a line.
type seen struct {
	isMember func(peer.ID) bool
	controls func(peer.ID) bool // whether the one who asks is a controller
	conns    func(peer.ID) []network.Conn
	refused  func(reason string, p peer.ID, from string)
	budgets  budgets
}

// budgets are the questions that each member may still ask.
type budgets struct {
	mu sync.Mutex // a leaf
	of map[peer.ID]*rate.Limiter
}

// take reports whether p may ask a question now.
func (b *budgets) take(p peer.ID, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.of[p]
	if l == nil {
		if len(b.of) >= maxAskers {
			maps.DeleteFunc(b.of, func(_ peer.ID, l *rate.Limiter) bool { return l.TokensAt(now) >= askBurst })
		}
		if b.of == nil {
			b.of = make(map[peer.ID]*rate.Limiter)
		}
		l = rate.NewLimiter(rate.Every(askEvery), askBurst)
		b.of[p] = l
	}
	return l.AllowN(now, 1)
}

// answer answers one question. It owns the stream.
func (s *seen) answer(st network.Stream) {
	defer func() { _ = st.Reset() }()
	by, from := st.Conn().RemotePeer(), st.Conn().RemoteMultiaddr().String()
	switch {
	case s.controls(by): // asks for each member
	case !s.isMember(by):
		s.refused("question of no member", by, from)
		return
	case !s.budgets.take(by, time.Now()):
		s.refused("too many questions", by, from)
		return
	}
	_ = st.SetDeadline(time.Now().Add(seenTime))
	of, err := readID(st)
	if err != nil || !s.isMember(of) {
		return
	}
	out := s.addresses(of)
	if s.controls(by) {
		out = []string{s.presence(of)}
	}
	if _, err := io.WriteString(st, strings.Join(out, "\n")+"\n"); err == nil {
		_ = st.Close()
		_, _ = st.Read(make([]byte, 1)) // until the other side has it, and closes
	}
}

// addresses are where p is seen, the newest connection's first.
func (s *seen) addresses(p peer.ID) (out []string) {
	for _, c := range slices.Backward(s.conns(p)) {
		a := c.RemoteMultiaddr()
		if _, ok := endpoint.Target(a); ok && !c.IsClosed() && !slices.Contains(out, a.String()) && len(out) < maxSeen {
			out = append(out, a.String())
		}
	}
	return out
}

// presence says whether p is connected.
func (s *seen) presence(p peer.ID) string {
	if slices.ContainsFunc(s.conns(p), func(c network.Conn) bool { return !c.IsClosed() }) {
		return identity.Here
	}
	return identity.Away
}

// readID reads a question.
func readID(r io.Reader) (peer.ID, error) {
	line, err := bufio.NewReader(io.LimitReader(r, maxID)).ReadString('\n')
	if err != nil {
		return "", err
	}
	return peer.Decode(strings.TrimSuffix(line, "\n"))
}
