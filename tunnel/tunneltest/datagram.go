package tunneltest

import (
	"bytes"
	"errors"
	"sync"
	"time"
)

var errNoDatagrams = errors.New("the path carries no datagrams")

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

// put is what becomes of one datagram.
func (d *Datagrams) put(b []byte) ([][]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return nil, d.err
	}
	d.sent++
	d.most = max(d.most, len(b))
	b = bytes.Clone(b)
	if d.Pass != nil {
		return d.Pass(b), nil
	}
	return [][]byte{b}, nil
}

// DatagramSize implements tunnel.Carrier.
func (c *Pipe) DatagramSize() int {
	if c.datagrams == nil {
		return 0
	}
	c.datagrams.mu.Lock()
	defer c.datagrams.mu.Unlock()
	return c.datagrams.size
}

// PutDatagram implements tunnel.Carrier.
func (c *Pipe) PutDatagram(b []byte) error {
	if c.datagrams == nil {
		return errNoDatagrams
	}
	arrive, err := c.datagrams.put(b)
	c.put = append(c.put, arrive...)
	return err
}

// FlushDatagrams implements tunnel.Carrier.
func (c *Pipe) FlushDatagrams() error {
	if c.datagrams == nil {
		return errNoDatagrams
	}
	for _, b := range c.put {
		c.sink.Datagram(b)
	}
	c.put = nil
	c.sink.Flush()
	return nil
}

// Waited implements tunnel.Carrier.
func (c *Pipe) Waited(time.Duration) {}
