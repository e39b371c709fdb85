package p2p

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/base/timeline"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/identity"
)

const (
	// maxContact bounds what a peer sends of a contact, in bytes, and maxSteps what is kept of it.
	maxContact = 4 << 10
	maxSteps   = 16
	// contactTime bounds an answer.
	contactTime = 5 * time.Second
)

// Contact is the last first contact with a peer, as one end sees it: its clock begins with the first step.
type Contact struct {
	Age    time.Duration    `json:"age"` // since the first step
	Events []timeline.Event `json:"events"`
}

// Contact is the last first contact with p, as this node sees it; without events there was none since the start.
func (n *Node) Contact(p peer.ID) Contact {
	began, events := n.timeline.Of(p)
	if len(events) == 0 {
		return Contact{}
	}
	return Contact{time.Since(began), events}
}

// ContactThere is the same as p sees it. The error wraps mss.ErrNotSupported where p's release keeps none.
func (n *Node) ContactThere(ctx context.Context, p peer.ID) (c Contact, err error) {
	ctx, cancel := context.WithTimeout(ctx, contactTime)
	defer cancel()
	s, err := n.OpenStream(ctx, p, identity.ContactProtocol)
	if err != nil {
		return c, err
	}
	defer s.Reset()
	defer context.AfterFunc(ctx, s.Reset)()
	if err := json.NewDecoder(io.LimitReader(s, maxContact)).Decode(&c); err != nil {
		return Contact{}, fmt.Errorf("read the peer's side of a contact: %w", err)
	}
	c.Events = c.Events[:min(len(c.Events), maxSteps)]
	for i, e := range c.Events {
		c.Events[i].Step = timeline.Step(wording.Foreign(string(e.Step), 64))
	}
	return c, nil
}

// answerContact shows a member its own contact with this node.
func (n *Node) answerContact(c *paths.Conn, s network.Stream) {
	defer s.Close()
	_ = s.SetDeadline(time.Now().Add(contactTime))
	if err := json.NewEncoder(s).Encode(n.Contact(c.RemotePeer())); err != nil {
		_ = s.Reset()
	}
}
