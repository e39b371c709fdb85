package tunneltest

import (
	"bytes"
	"context"
	"sync"

	"edgemesh/tunnel"
)

// Datagrams is what a path carries beside its carriers.
type Datagrams struct {
	// Pass, when set, is shown each datagram and returns those that arrive in its stead:
	// none, or more, in any order.
	Pass func(b []byte) [][]byte

	mu   sync.Mutex
	size int
	err  error
	sent int
	most int // the longest
}

// SetSize sets the longest datagram that passes; 0: none.
func (d *Datagrams) SetSize(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.size = n
}

// Fail makes every attempt to send one fail with err.
func (d *Datagrams) Fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

// Sent is how many were sent, and how long the longest was.
func (d *Datagrams) Sent() (count, longest int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sent, d.most
}

// WithDatagrams is the underlay of node id whose paths also carry datagrams.
func (n *Net) WithDatagrams(id tunnel.PeerID, d *Datagrams) tunnel.Underlay {
	return &datagramUnderlay{underlay{n, id}, d}
}

type datagramUnderlay struct {
	underlay
	d *Datagrams
}

func (u *datagramUnderlay) Open(ctx context.Context, peer tunnel.PeerID, lane tunnel.Lane) (tunnel.Carrier, error) {
	c, err := u.underlay.Open(ctx, peer, lane)
	if err != nil {
		return nil, err
	}
	u.n.mu.Lock()
	far := u.n.tunnels[peer]
	u.n.mu.Unlock()
	return &datagramPipe{Carrier: c, d: u.d, sink: far.Datagrams(u.self)}, nil
}

// datagramPipe is a Pipe with datagrams.
type datagramPipe struct {
	tunnel.Carrier
	d    *Datagrams
	sink *tunnel.DatagramSink
	put  [][]byte
}

var _ tunnel.DatagramCarrier = (*datagramPipe)(nil)

// Lost is the carrier's.
func (p *datagramPipe) Lost() bool {
	l, ok := p.Carrier.(interface{ Lost() bool })
	return ok && l.Lost()
}

func (p *datagramPipe) DatagramSize() int {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return p.d.size
}

func (p *datagramPipe) PutDatagram(b []byte) error {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if p.d.err != nil {
		return p.d.err
	}
	p.d.sent++
	p.d.most = max(p.d.most, len(b))
	if b = bytes.Clone(b); p.d.Pass != nil {
		p.put = append(p.put, p.d.Pass(b)...)
	} else {
		p.put = append(p.put, b)
	}
	return nil
}

func (p *datagramPipe) FlushDatagrams() error {
	for _, b := range p.put {
		p.sink.Datagram(b)
	}
	p.put = nil
	p.sink.Flush()
	return nil
}
