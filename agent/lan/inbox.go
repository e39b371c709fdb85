package lan

import (
	"bytes"
	"sync"
	"time"

	"edgemesh/agent/lan/decide"
	"edgemesh/internal/wake"
)

// maxInbox bounds the waiting packets: a thousand peers' requests.
const maxInbox = 2048

// inbox holds packets while a change is applied to the kernel: one call then applies all
// that they change.
type inbox struct {
	arrived wake.One

	mu   sync.Mutex // nothing else is locked while it is held
	list []decide.Packet
}

// put takes one packet from a socket.
func (i *inbox) put(b []byte, a Arrival) {
	m, err := decide.Parse(b)
	if err != nil {
		return
	}
	i.mu.Lock()
	if len(i.list) < maxInbox {
		i.list = append(i.list, decide.Packet{Message: m, V6: a.V6, From: a.From, Link: a.Link, Payload: bytes.Clone(b), At: time.Now()})
	}
	i.mu.Unlock()
	i.arrived.Wake()
}

// empty takes all packets out.
func (i *inbox) empty() []decide.Packet {
	i.mu.Lock()
	defer i.mu.Unlock()
	all := i.list
	i.list = nil
	return all
}
