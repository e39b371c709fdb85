package relays

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/relay/relays/choice"
	"edgemesh/tunnel/p2p/who/clones"
	"edgemesh/tunnel/p2p/who/identity"
)

const (
	// maxReported bounds the relays in one message, and maxReportBytes the message.
	maxReported    = 16
	maxReportBytes = 4096
	// maxReportedRTT bounds what a peer may say of a round-trip time.
	maxReportedRTT = 10 * time.Second
	// reportTime bounds the sending and the receiving of a message.
	reportTime = 5 * time.Second
	// A message that was not taken is sent again, in all so often and so much later.
	reportTries = 4
	reportAgain = time.Second
)

// message is what one side sends the other about its relays: one JSON document on a stream of its own, after a
// connection was made and when its reservations change. Who takes it closes the stream; who does not, resets it.
type message struct {
	Relays []entry      `json:"relays"`
	Clone  *clones.Pair `json:"clone,omitempty"` // another machine has the sender's key
}

// entry is one relay as the sender sees it.
type entry struct {
	ID   string  `json:"id"`
	Ms   float64 `json:"ms,omitempty"` // round-trip time in milliseconds; 0: unknown
	Held bool    `json:"held"`         // the sender has a reservation there
}

// report is what a peer sent last.
type report struct {
	rtt  map[peer.ID]time.Duration
	held map[peer.ID]bool
	pair *clones.Pair
}

// Reports are exchanged with peers, so that both ends of a circuit know which relay suits them.
type Reports struct {
	*common
	clients func() []*client

	mu   sync.Mutex // a leaf: guards what follows
	of   map[peer.ID]*report
	sent []peer.ID // the reservations that peers were last told of
	// next has the peers that are being told, each with the connection for another message, nil if none is owed: the
	// later of two messages on their way might arrive first.
	next map[peer.ID]network.Conn
}

// message says what to send to peers: first the relays that hold a reservation, else in the membership's order.
func (r *Reports) message() message {
	var held, others []entry
	for _, c := range r.clients() {
		st := c.status()
		e := entry{ID: st.ID.String(), Ms: float64(st.RTT.Microseconds()) / 1000, Held: st.Reserved}
		switch {
		case st.Reserved:
			held = append(held, e)
		case st.RTT > 0:
			others = append(others, e)
		}
	}
	all := append(held, others...)
	return message{all[:min(len(all), maxReported)], r.Clone()}
}

// Send tells the peer at the other end of conn. It does not block.
func (r *Reports) Send(conn network.Conn) {
	p := conn.RemotePeer()
	r.mu.Lock()
	_, busy := r.next[p]
	r.next[p] = conn
	r.mu.Unlock()
	if !busy {
		r.Spawn(func() { r.tell(p) })
	}
}

// tell sends p what it is owed, one message after the other, each with what holds by then.
func (r *Reports) tell(p peer.ID) {
	for conn := r.owed(p); conn != nil; conn = r.owed(p) {
		for try := 1; ; try++ {
			err := r.send(conn)
			if err == nil {
				break
			}
			if conn.IsClosed() {
				conn = r.another(p)
			}
			if conn == nil || try == reportTries || !wake.Sleep(r.ctx, reportAgain) {
				r.Log.Debug("send list of relays", "peer", p, "err", err)
				break
			}
		}
	}
}

// owed returns the connection for p's next message, nil if there is none to send: then p is no longer being told.
func (r *Reports) owed(p peer.ID) network.Conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	conn := r.next[p]
	if conn == nil {
		delete(r.next, p)
	} else {
		r.next[p] = nil
	}
	return conn
}

// another returns an open connection to p, nil if there is none.
func (r *Reports) another(p peer.ID) network.Conn {
	for _, c := range r.Peers.Conns() {
		if c.RemotePeer() == p && !c.IsClosed() {
			return c
		}
	}
	return nil
}

// send returns when the peer has taken the message.
func (r *Reports) send(conn network.Conn) error {
	ctx, cancel := context.WithTimeout(r.ctx, reportTime)
	defer cancel()
	s, err := conns.Open(ctx, conn, identity.RelaysProtocol)
	if err != nil {
		return err
	}
	defer func() { _ = s.Reset() }()
	b, err := json.Marshal(r.message())
	if err != nil {
		return err
	}
	_ = s.SetDeadline(time.Now().Add(reportTime))
	if _, err := s.Write(b); err != nil {
		return err
	}
	if err := s.CloseWrite(); err != nil {
		return err
	}
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("not taken: %w", err)
	}
	return nil
}

// sendAll tells every connected peer when the relays that hold a reservation have changed since the last time.
func (r *Reports) sendAll() {
	var held []peer.ID
	for _, c := range r.clients() {
		if c.status().Reserved {
			held = append(held, c.info.ID)
		}
	}
	r.mu.Lock()
	same := slices.Equal(held, r.sent)
	r.sent = held
	r.mu.Unlock()
	if same {
		return
	}
	r.Again()
}

// Again sends every connected peer a message, whose clone is new.
func (r *Reports) Again() {
	for _, conn := range r.Peers.Conns() {
		r.Send(conn)
	}
}

// Receive takes what a peer sends on s.
func (r *Reports) Receive(s network.Stream) {
	got, ok := r.read(s)
	if !ok {
		_ = s.Reset()
		return
	}
	r.mu.Lock()
	r.of[s.Conn().RemotePeer()] = got
	r.mu.Unlock()
	r.Cloned(s.Conn(), got.pair)
	_ = s.Close()
}

func (r *Reports) read(s network.Stream) (*report, bool) {
	if !r.Peers.Has(s.Conn()) {
		return nil, false
	}
	_ = s.SetReadDeadline(time.Now().Add(reportTime))
	b, err := io.ReadAll(io.LimitReader(s, maxReportBytes+1))
	if err != nil || len(b) > maxReportBytes {
		return nil, false
	}
	return parseReport(b)
}

// parseReport reads a message. It keeps relays that the membership does not list, or not yet: what a peer says of a
// relay counts only for those that are listed, so that it cannot make this node dial anything.
func parseReport(b []byte) (*report, bool) {
	var m message
	if err := json.Unmarshal(b, &m); err != nil || len(m.Relays) > maxReported {
		return nil, false
	}
	r := &report{rtt: make(map[peer.ID]time.Duration), held: make(map[peer.ID]bool), pair: m.Clone}
	for _, e := range m.Relays {
		id, err := peer.Decode(e.ID)
		if err != nil {
			continue
		}
		if e.Ms > 0 && e.Ms < float64(maxReportedRTT/time.Millisecond) {
			r.rtt[id] = time.Duration(e.Ms * float64(time.Millisecond))
		}
		r.held[id] = e.Held
	}
	return r, true
}

// Retain forgets what was sent by peers that member does not accept.
func (r *Reports) Retain(member func(peer.ID) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.of {
		if !member(p) {
			delete(r.of, p)
		}
	}
}

// Candidates returns the relays as candidates for circuits to p, in the membership's order.
func (r *Reports) Candidates(p peer.ID) []choice.Candidate {
	clients := r.clients()
	r.mu.Lock()
	theirs := r.of[p]
	r.mu.Unlock()
	all := make([]peer.ID, len(clients))
	for i, c := range clients {
		all[i] = c.info.ID
	}
	homes := choice.Homes(p, all)
	out := make([]choice.Candidate, 0, len(clients))
	for _, c := range clients {
		id := c.info.ID
		if id == p {
			continue // a member that is a relay is not reached through itself
		}
		st := c.status()
		x := choice.Candidate{Relay: id, Connected: st.Connected, Mine: st.Reserved, Known: theirs != nil, Cost: st.RTT,
			Home: slices.Index(homes, id), Failed: c.outcome.get().failed}
		if theirs != nil {
			x.Theirs = theirs.held[id]
			if x.Cost > 0 {
				x.Cost += theirs.rtt[id]
			}
		}
		out = append(out, x)
	}
	return out
}
