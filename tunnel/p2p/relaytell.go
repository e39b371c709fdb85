package p2p

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/conns"
	"edgemesh/tunnel/p2p/identity"
)

const (
	// maxTold bounds the relays that one side tells of, and maxToldBytes the
	// message.
	maxTold      = 16
	maxToldBytes = 4096
	// maxToldRTT bounds what a peer may say of a distance.
	maxToldRTT = 10 * time.Second
	// tellTime bounds the sending and the receiving of the message.
	tellTime = 5 * time.Second
)

// relayNews is what one side tells the other of its relays: one JSON document on
// a stream of its own, after a connection was made and when its relays change.
type relayNews struct {
	Relays []relayLine `json:"relays"`
}

// relayLine is one relay as the sender sees it.
type relayLine struct {
	ID   string  `json:"id"`
	Ms   float64 `json:"ms,omitempty"` // distance in milliseconds; 0: not known
	Held bool    `json:"held"`         // the sender has a reservation there
}

// told is what a peer said last.
type told struct {
	rtt  map[peer.ID]time.Duration
	held map[peer.ID]bool
}

// news says what to tell peers.
func (rs *relaySet) news() relayNews {
	var n relayNews
	for _, l := range rs.all() {
		st := l.status()
		if st.RTT > 0 || st.Reserved {
			n.Relays = append(n.Relays, relayLine{ID: st.ID.String(), Ms: float64(st.RTT.Microseconds()) / 1000, Held: st.Reserved})
		}
	}
	// Those that hold a reservation first, else in the membership's order.
	slices.SortStableFunc(n.Relays, func(a, b relayLine) int {
		switch {
		case a.Held == b.Held:
			return 0
		case a.Held:
			return -1
		}
		return 1
	})
	if len(n.Relays) > maxTold {
		n.Relays = n.Relays[:maxTold]
	}
	return n
}

// tellOn tells the peer at the other end of c.
func (rs *relaySet) tellOn(c network.Conn) {
	rs.n.spawn(func() {
		if err := rs.tell(c); err != nil && !c.IsClosed() {
			rs.n.log.Debug("relays are not told", "peer", c.RemotePeer(), "err", err)
		}
	})
}

func (rs *relaySet) tell(c network.Conn) error {
	ctx, cancel := context.WithTimeout(rs.n.ctx, tellTime)
	defer cancel()
	s, err := conns.Open(ctx, c, identity.RelaysProtocol)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	b, err := json.Marshal(rs.news())
	if err != nil {
		return err
	}
	_ = s.SetWriteDeadline(time.Now().Add(tellTime))
	_, err = s.Write(b)
	return err
}

// tellAll tells every connected peer when the relays that hold a reservation have
// changed since the last time.
func (rs *relaySet) tellAll() {
	var held []peer.ID
	for _, l := range rs.all() {
		if l.status().Reserved {
			held = append(held, l.info.ID)
		}
	}
	rs.mu.Lock()
	same := slices.Equal(held, rs.toldHeld)
	rs.toldHeld = held
	rs.mu.Unlock()
	if same {
		return
	}
	for _, c := range rs.n.peers.bestConns() {
		rs.tellOn(c)
	}
}

// hearOf takes what a peer tells. Relays that are none of the membership's are
// left out: a peer cannot make this node dial anything.
func (rs *relaySet) hearOf(s network.Stream) {
	defer func() { _ = s.Reset() }()
	if rs.n.peers.pathOf(s.Conn()) == nil {
		return
	}
	_ = s.SetReadDeadline(time.Now().Add(tellTime))
	b, err := io.ReadAll(io.LimitReader(s, maxToldBytes+1))
	if err != nil || len(b) > maxToldBytes {
		return
	}
	t, ok := parseNews(b, rs.n.gater.View().IsRelay)
	if !ok {
		return
	}
	rs.mu.Lock()
	rs.told[s.Conn().RemotePeer()] = t
	rs.mu.Unlock()
}

// parseNews takes the lines of a message that are about relays we know.
func parseNews(b []byte, isRelay func(peer.ID) bool) (*told, bool) {
	var n relayNews
	if err := json.Unmarshal(b, &n); err != nil || len(n.Relays) > maxTold {
		return nil, false
	}
	t := &told{rtt: make(map[peer.ID]time.Duration), held: make(map[peer.ID]bool)}
	for _, line := range n.Relays {
		id, err := peer.Decode(line.ID)
		if err != nil || !isRelay(id) {
			continue
		}
		if line.Ms > 0 && line.Ms < float64(maxToldRTT/time.Millisecond) {
			t.rtt[id] = time.Duration(line.Ms * float64(time.Millisecond))
		}
		t.held[id] = line.Held
	}
	return t, true
}

// retain forgets what peers told that member does not accept.
func (rs *relaySet) retain(member func(peer.ID) bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for p := range rs.told {
		if !member(p) {
			delete(rs.told, p)
		}
	}
	for p := range rs.prefer {
		if !member(p) {
			delete(rs.prefer, p)
		}
	}
}
