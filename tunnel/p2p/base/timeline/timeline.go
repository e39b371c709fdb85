// Package timeline notes when each step of a first packet to a peer was done, which names its waits. That costs a handful
// of map entries for each peer that is met; a peer's last first contact is kept.
package timeline

import (
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

// Step is one that is waited for. Its name is what ping --timeline prints.
type Step string

// The steps, on the side that begins and on the other one.
const (
	Wanted    Step = "no path: connecting"
	Requested Step = "circuit requested, ClientHello sent"
	Secured   Step = "circuit accepted, handshake done"
	Arrived   Step = "circuit arrived, accepted"
	Up        Step = "path is up"
	Opened    Step = "own lane opened"
	Received  Step = "peer's lane arrived"
	Read      Step = "first data read"
)

const (
	// most bounds the peers whose contacts are kept.
	most = 4096
	// over is how long a contact lasts: a step after that belongs to something else.
	over = 30 * time.Second
)

// Event is a step that was done so long after the contact began.
type Event struct {
	Step  Step
	After time.Duration
}

// Book has the last first contact with each peer. The nil Book keeps none.
type Book struct {
	mu    sync.Mutex // a leaf
	peers map[peer.ID]*contact
}

type contact struct {
	began  time.Time
	events []Event
}

// New returns an empty Book.
func New() *Book { return &Book{peers: make(map[peer.ID]*contact)} }

// Begin notes the first step of a contact. One that began just now continues: both ends may begin.
func (b *Book) Begin(p peer.ID, s Step) {
	if b == nil {
		return
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.peers[p]; c != nil && now.Sub(c.began) < time.Second {
		c.note(s, now)
		return
	}
	if len(b.peers) >= most {
		clear(b.peers)
	}
	b.peers[p] = &contact{began: now, events: []Event{{Step: s}}}
}

// Note notes a step of the contact that has begun, if it is its first of that name.
func (b *Book) Note(p peer.ID, s Step) {
	if b == nil {
		return
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.peers[p]; c != nil {
		c.note(s, now)
	}
}

func (c *contact) note(s Step, now time.Time) {
	after := now.Sub(c.began)
	if after > over {
		return
	}
	for _, e := range c.events {
		if e.Step == s {
			return
		}
	}
	c.events = append(c.events, Event{s, after})
}

// Of returns the last first contact with p, and when it began; none is the zero time.
func (b *Book) Of(p peer.ID) (began time.Time, events []Event) {
	if b == nil {
		return began, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.peers[p]; c != nil {
		return c.began, append(events, c.events...)
	}
	return began, nil
}
