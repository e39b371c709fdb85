package kubeapi

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
)

// Gate is a TCP forwarder in front of an API server: the uplink of a node, to be
// cut. It counts what goes through it.
type Gate struct {
	URL string // https://127.0.0.1:PORT

	target   string
	listener net.Listener
	received atomic.Int64
	sent     atomic.Int64

	mu    sync.Mutex
	shut  bool
	conns map[net.Conn]struct{}
	wg    sync.WaitGroup
}

// NewGate opens a gate to the server at url.
func NewGate(url string) (*Gate, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	g := &Gate{
		URL: "https://" + l.Addr().String(), target: strings.TrimPrefix(url, "https://"),
		listener: l, conns: map[net.Conn]struct{}{},
	}
	g.wg.Go(g.accept)
	return g, nil
}

// Received is how many bytes came from the server so far, TLS included.
func (g *Gate) Received() int64 { return g.received.Load() }

// Sent is how many bytes went to the server.
func (g *Gate) Sent() int64 { return g.sent.Load() }

// Shut cuts all connections and lets no new ones through.
func (g *Gate) Shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
	for c := range g.conns {
		_ = c.Close() // cut, not closed
	}
}

// Open lets connections through again.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = false
}

// Close ends the gate.
func (g *Gate) Close() {
	_ = g.listener.Close() // ends accept
	g.Shut()
	g.wg.Wait()
}

func (g *Gate) accept() {
	for {
		in, err := g.listener.Accept()
		if err != nil {
			return
		}
		g.wg.Go(func() { g.forward(in) })
	}
}

func (g *Gate) forward(in net.Conn) {
	defer in.Close()
	if !g.add(in) {
		return
	}
	defer g.remove(in)
	out, err := net.Dial("tcp", g.target)
	if err != nil {
		return
	}
	defer out.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(out, counted{in, &g.sent}) // ends with either side
		_ = out.Close()
	})
	_, _ = io.Copy(in, counted{out, &g.received})
	_ = in.Close()
	wg.Wait()
}

func (g *Gate) add(c net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return false
	}
	g.conns[c] = struct{}{}
	return true
}

func (g *Gate) remove(c net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
}

type counted struct {
	io.Reader
	n *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}
