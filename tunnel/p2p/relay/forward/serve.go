package forward

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/carrier/packet"
)

// A member opens a channel by a stream on its QUIC connection, from whose address its packets will come, and has it as long as
// the stream lives:
//
//	member  version (1) | length of the peer's ID (1) | the ID
//	relay   version (1) | outcome (1) | number (4)
//
// What is sent there goes to the peer as long as that has a channel to this member: its leave.
const (
	version      = 1
	answerLen    = 6
	setupTimeout = 5 * time.Second
)

// outcome is the relay's answer.
type outcome byte

const (
	opened outcome = iota
	refused
	full
	noSocket
)

// String is what an operator reads.
func (o outcome) String() string {
	switch o {
	case refused:
		return "the relay refuses one of the two members"
	case full:
		return "the relay has no more channels for this member: raise limits.maxCircuitsPerPeer or limits.maxCircuits in its configuration"
	case noSocket:
		return "the relay's QUIC socket forwards nothing"
	}
	return fmt.Sprintf("outcome %d", byte(o))
}

// TooMany is why a channel is refused.
const TooMany = "too many channels"

// Serve opens the channel that a stream requests, until the stream ends. It owns the stream.
func (s *Service) Serve(st network.Stream) {
	defer func() { _ = st.Reset() }()
	_ = st.SetDeadline(time.Now().Add(setupTimeout))
	to, err := readRequest(st)
	if err != nil {
		return
	}
	c, why := s.open(st.Conn(), to)
	answer := [answerLen]byte{version, byte(why)}
	if c != nil {
		defer s.close(c)
		binary.BigEndian.PutUint32(answer[2:], c.number)
	}
	if _, err := st.Write(answer[:]); err != nil {
		return
	}
	if c != nil {
		_ = st.SetDeadline(time.Time{})
	} else {
		_ = st.CloseWrite()
	}
	_, _ = st.Read(make([]byte, 1)) // until it ends: a reset overtakes a refusal
}

// readRequest reads whom a channel is to lead to.
func readRequest(r io.Reader) (peer.ID, error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "", err
	}
	id := make([]byte, head[1])
	if head[0] != version {
		return "", errors.New("another version")
	}
	if _, err := io.ReadFull(r, id); err != nil {
		return "", err
	}
	return peer.IDFromBytes(id)
}

// open makes a channel from who is connected by conn.
func (s *Service) open(conn network.Conn, to peer.ID) (*channel, outcome) {
	by := conn.RemotePeer()
	if by == to || !s.cfg.IsMember(by) || !s.cfg.IsMember(to) || s.cfg.StandsBy(conn) {
		return nil, refused
	}
	far, err := s.cfg.Far(conn)
	if err != nil {
		return nil, noSocket
	}
	c := s.add(by, to, far)
	if c == nil {
		s.cfg.Refused(TooMany, by, conn.RemoteMultiaddr().String())
		return nil, full
	}
	return c, opened
}

// add adds a channel; nil: there are enough.
func (s *Service) add(by, to peer.ID, far Far) *channel {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.members[by]
	if len(s.channels) >= s.cfg.All || m != nil && m.channels >= s.cfg.PerMember {
		return nil
	}
	if m == nil {
		m = &member{id: by, share: s.cfg.Join(by)}
		s.members[by] = m
	}
	m.channels++
	c := &channel{from: m, pair: pair{by, to}, far: far}
	for c.number = rand.Uint32N(packet.MaxChannel + 1); s.channels[c.number] != nil; {
		c.number = rand.Uint32N(packet.MaxChannel + 1)
	}
	s.channels[c.number] = c
	s.leaves[c.pair] = append(s.leaves[c.pair], c)
	s.join(c.pair)
	return c
}

// close ends a channel.
func (s *Service) close(c *channel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.channels, c.number)
	c.back.Store(nil)
	if left := slices.DeleteFunc(s.leaves[c.pair], func(o *channel) bool { return o == c }); len(left) > 0 {
		s.leaves[c.pair] = left
	} else {
		delete(s.leaves, c.pair)
	}
	s.join(c.pair)
	if m := c.from; m.channels > 1 {
		m.channels--
	} else {
		delete(s.members, m.id)
		m.share.Leave()
	}
}

// join has channels of both directions lead to the newest one of the other. The caller holds mu.
func (s *Service) join(p pair) {
	back := pair{p.to, p.from}
	for one, other := range map[pair]pair{p: back, back: p} {
		var to *channel
		if all := s.leaves[other]; len(all) > 0 {
			to = all[len(all)-1]
		}
		for _, c := range s.leaves[one] {
			c.back.Store(to)
		}
	}
}
