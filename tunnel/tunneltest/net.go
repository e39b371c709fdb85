package tunneltest

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"edgemesh/tunnel"
)

// ErrReset is what both ends of a carrier get after a reset, and what Open
// returns when there is no path.
var ErrReset = errors.New("carrier reset")

// ErrNoPath is returned by Open while no path to the peer is set.
var ErrNoPath = errors.New("no path")

// Net joins tunnels.
type Net struct {
	mu      sync.Mutex
	tunnels map[tunnel.PeerID]*tunnel.Tunnel
	paths   map[[2]tunnel.PeerID]*Path
	wg      sync.WaitGroup
	opened  int
	errs    []error
	opening chan<- struct{}
	proceed <-chan struct{}
}

// NewNet makes a net without tunnels and paths.
func NewNet() *Net {
	return &Net{tunnels: map[tunnel.PeerID]*tunnel.Tunnel{}, paths: map[[2]tunnel.PeerID]*Path{}}
}

// Attach makes t the receiver of what is sent to id.
func (n *Net) Attach(id tunnel.PeerID, t *tunnel.Tunnel) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tunnels[id] = t
}

// SetPath makes p the best path from one node to another; nil: there is none.
func (n *Net) SetPath(from, to tunnel.PeerID, p *Path) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.paths[[2]tunnel.PeerID{from, to}] = p
}

// Opened is how many carriers were opened so far.
func (n *Net) Opened() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.opened
}

// Errors returns what Receive calls ended with, other than nil.
func (n *Net) Errors() []error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.errs)
}

// HoldOpen makes the next Open, once it has chosen its path, signal on the first
// channel and continue when the second is closed.
func (n *Net) HoldOpen() (opening <-chan struct{}, proceed chan<- struct{}) {
	o, p := make(chan struct{}), make(chan struct{})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.opening, n.proceed = o, p
	return o, p
}

// Wait returns once every Receive call has ended.
func (n *Net) Wait() { n.wg.Wait() }

// Underlay is the underlay of node id.
func (n *Net) Underlay(id tunnel.PeerID) tunnel.Underlay { return &underlay{n, id} }

type underlay struct {
	n    *Net
	self tunnel.PeerID
}

func (u *underlay) Open(ctx context.Context, peer tunnel.PeerID, lane tunnel.Lane) (tunnel.Carrier, error) {
	u.n.mu.Lock()
	path, far := u.n.paths[[2]tunnel.PeerID{u.self, peer}], u.n.tunnels[peer]
	opening, proceed := u.n.opening, u.n.proceed
	u.n.opening, u.n.proceed = nil, nil
	u.n.mu.Unlock()
	if opening != nil {
		opening <- struct{}{}
		<-proceed
	}
	if path == nil || far == nil {
		return nil, ErrNoPath
	}
	p, err := path.open()
	if err != nil {
		return nil, err
	}
	u.n.mu.Lock()
	u.n.opened++
	u.n.mu.Unlock()
	u.n.wg.Add(1)
	go func() {
		defer u.n.wg.Done()
		err := far.Receive(u.self, lane, reader{p})
		p.Reset() // whoever still writes learns that nobody reads
		if err != nil {
			u.n.mu.Lock()
			defer u.n.mu.Unlock()
			u.n.errs = append(u.n.errs, err)
		}
	}()
	return p, nil
}

// Path connects two nodes. Carriers on it share its fate.
type Path struct {
	mu      sync.Mutex
	cond    *sync.Cond
	room    int
	stalled bool
	dead    bool
	clean   bool
	rtt     time.Duration
	slow    time.Duration
}

// NewPath makes a path whose carriers each hold up to room bytes between Write
// and Read.
func NewPath(room int) *Path {
	p := &Path{room: room}
	p.cond = sync.NewCond(&p.mu)
	return p
}

// Stall keeps what is in flight from being read until Resume, as a path does
// that drops everything: no end gets an error.
func (p *Path) Stall() { p.set(func() { p.stalled = true }) }

// Resume ends a Stall; nothing was lost.
func (p *Path) Resume() { p.set(func() { p.stalled = false }) }

// Kill breaks all carriers; what was in flight is lost.
func (p *Path) Kill() { p.set(func() { p.dead = true }) }

// SetRTT sets the round trip that the path's carriers report; it delays nothing.
func (p *Path) SetRTT(d time.Duration) { p.set(func() { p.rtt = d }) }

// SetClean sets whether the path's carriers report that it loses nothing.
func (p *Path) SetClean(clean bool) { p.set(func() { p.clean = clean }) }

// Slow makes every read of up to the path's room take d, so that a queue stands in front of it.
func (p *Path) Slow(d time.Duration) { p.set(func() { p.slow = d }) }

func (p *Path) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.cond.Broadcast()
}

func (p *Path) open() (*Pipe, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return nil, ErrNoPath
	}
	return &Pipe{path: p}, nil
}

// Pipe is a carrier: its own two ends.
type Pipe struct {
	path  *Path
	buf   []byte
	eof   bool
	reset bool
}

var _ tunnel.Carrier = (*Pipe)(nil)

// Write implements tunnel.Carrier.
func (c *Pipe) Write(b []byte) (int, error) {
	p := c.path
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for {
		switch {
		case c.reset || p.dead || c.eof:
			return n, ErrReset
		case n == len(b):
			return n, nil
		}
		if m := min(p.room-len(c.buf), len(b)-n); m > 0 {
			c.buf = append(c.buf, b[n:n+m]...)
			n += m
			p.cond.Broadcast()
			continue
		}
		p.cond.Wait()
	}
}

// CloseWrite implements tunnel.Carrier.
func (c *Pipe) CloseWrite() error {
	c.path.set(func() { c.eof = true })
	return nil
}

// Waited implements tunnel.Carrier.
func (c *Pipe) Waited(time.Duration) {}

// Reset implements tunnel.Carrier.
func (c *Pipe) Reset() { c.path.set(func() { c.reset = true }) }

// Lost reports whether the path is stalled or killed.
func (c *Pipe) Lost() bool {
	c.path.mu.Lock()
	defer c.path.mu.Unlock()
	return c.path.stalled || c.path.dead
}

// RTT implements tunnel.Carrier.
func (c *Pipe) RTT() time.Duration {
	c.path.mu.Lock()
	defer c.path.mu.Unlock()
	return c.path.rtt
}

// Clean implements tunnel.Carrier.
func (c *Pipe) Clean() bool {
	c.path.mu.Lock()
	defer c.path.mu.Unlock()
	return c.path.clean
}

// reader is a Pipe's far end.
type reader struct{ c *Pipe }

var _ tunnel.Stream = reader{}

func (r reader) Reset() { r.c.Reset() }

// NewStream is a stream that reads r; reset, which may be nil, has to unblock that.
func NewStream(r io.Reader, reset func()) tunnel.Stream { return &stream{r, reset} }

type stream struct {
	io.Reader
	reset func()
}

func (s *stream) Reset() {
	if s.reset != nil {
		s.reset()
	}
}

func (r reader) Read(b []byte) (int, error) {
	c, p := r.c, r.c.path
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case c.reset || p.dead:
			return 0, ErrReset
		case !p.stalled && len(c.buf) > 0:
			if d := p.slow; d > 0 {
				p.mu.Unlock()
				time.Sleep(d)
				p.mu.Lock()
			}
			n := copy(b, c.buf)
			c.buf = append(c.buf[:0], c.buf[n:]...)
			p.cond.Broadcast()
			return n, nil
		case !p.stalled && c.eof:
			return 0, io.EOF
		}
		p.cond.Wait()
	}
}
