package relays

import (
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
)

// shortestLife is the least that a proxy is believed to let connections live: what ends earlier has another cause.
const shortestLife = 15 * time.Second

// lifetime is how long the proxy lets connections live, as far as it has ended some. Connections to several relays begin
// at the same time, and would end so: those that carry nothing are renewed in the middle of their time. The one that carries
// something then ends alone, and the others are there.
type lifetime struct {
	mu sync.Mutex // a leaf
	d  time.Duration
}

// ended notes the end of a connection that nobody here has closed.
func (l *lifetime) ended(age time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if age >= shortestLife && (l.d == 0 || age < l.d) {
		l.d = age
	}
}

// middle says how long after its beginning a connection is to be renewed if it carries nothing; 0: never. One that has
// lived so long that the proxy seems to end nothing any longer says so by its age.
func (l *lifetime) middle(age time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if age > 2*l.d {
		l.d = 0
	}
	return l.d / 2
}

// renewed notes a renewal. The next one is later: when connections end for another reason, this ends as well.
func (l *lifetime) renewed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.d += l.d / 2
}

// aged is the age of the oldest connection.
func aged(conns []network.Conn) (age time.Duration) {
	for _, c := range conns {
		age = max(age, time.Since(c.Stat().Opened))
	}
	return age
}
