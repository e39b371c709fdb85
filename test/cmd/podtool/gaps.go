package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// gapReport is the outcome of gaps.
type gapReport struct {
	Sent      int     `json:"sent"`
	Received  int     `json:"received"`
	Lost      int     `json:"lost"`
	Doubled   int     `json:"doubled"`
	Reordered int     `json:"reordered"`
	GapMs     float64 `json:"gapMs"` // the longest time without an answer while sending
	P50Ms     float64 `json:"p50Ms"` // round-trip times
	P99Ms     float64 `json:"p99Ms"`
	MaxMs     float64 `json:"maxMs"`
	// GapAt is when the longest gap began, to be looked up in logs.
	GapAt time.Time `json:"gapAt"`
	// Silences are all gaps of more than a second, in their order.
	Silences []silence `json:"silences,omitempty"`
	Error    string    `json:"error,omitempty"`
}

// longSilence is the shortest that is reported, in ms.
const longSilence = 1000

type silence struct {
	At time.Time `json:"at"` // when it began
	Ms float64   `json:"ms"`
}

// silent notes a gap.
func (r *gapReport) silent(from, to time.Time) {
	gap := ms(to.Sub(from))
	if gap > r.GapMs {
		r.GapMs, r.GapAt = gap, from
	}
	if gap > longSilence {
		r.Silences = append(r.Silences, silence{from, gap})
	}
}

// An echoer sends numbered messages and receives them back, all of one length.
type echoer interface {
	send(p []byte) error
	receive(p []byte) error
	io.Closer
}

// A message has its number and when it was sent.
const (
	usualMessage = 64
	leastMessage = 16
	mostMessage  = 1 << 15
)

// pace is how a flow sends.
type pace struct {
	size                       int
	interval, duration, linger time.Duration
}

// gaps runs a steady flow of messages through an echo server (or the
// kernel's, for icmp) and reports what it saw. It fails when the flow broke.
func gaps(ctx context.Context, args []string) error {
	fs := newFlags("gaps")
	proto := fs.String("proto", "icmp", "icmp, udp or tcp")
	var p pace
	fs.IntVar(&p.size, "size", usualMessage, "bytes of a message, 16 to 32768")
	fs.DurationVar(&p.interval, "interval", 20*time.Millisecond, "between messages")
	fs.DurationVar(&p.duration, "duration", 5*time.Second, "of the flow")
	fs.DurationVar(&p.linger, "linger", time.Second, "wait for the last answers")
	host, err := parse(fs, args, 1)
	if err != nil {
		return err
	}
	if p.size < leastMessage || p.size > mostMessage {
		return fmt.Errorf("%w: --size %d: %d to %d", errUsage, p.size, leastMessage, mostMessage)
	}
	e, err := dialEcho(ctx, *proto, host[0])
	if err != nil {
		return errors.Join(err, report(gapReport{Error: err.Error()}))
	}
	r, err := measure(ctx, e, p)
	if err != nil {
		r.Error = err.Error()
	}
	return errors.Join(err, report(r))
}

func dialEcho(ctx context.Context, proto, host string) (echoer, error) {
	switch proto {
	case "icmp":
		return dialICMP(host)
	case "udp", "tcp":
		port := map[string]int{"udp": servePort, "tcp": bulkPort}[proto]
		d := net.Dialer{Timeout: 5 * time.Second}
		c, err := d.DialContext(ctx, proto, net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			return nil, err
		}
		if proto == "tcp" {
			if _, err := io.WriteString(c, "echo\n"); err != nil {
				return nil, errors.Join(err, c.Close())
			}
		}
		return connEcho{c}, nil
	}
	return nil, fmt.Errorf("%w: --proto %q", errUsage, proto)
}

// measure sends until duration is over (or ctx ends, which is not an error) and
// waits for what is still in flight.
func measure(ctx context.Context, e echoer, f pace) (gapReport, error) {
	var (
		mu   sync.Mutex
		r    gapReport
		rtts []time.Duration
		last = time.Now()
		next uint64
		seen = map[uint64]bool{}
		all  = make(chan struct{})
		want = -1 // known when the last was sent
	)
	note := func(seq uint64, sent time.Time) {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		switch {
		case seen[seq]:
			r.Doubled++
			return
		case seq < next:
			r.Reordered++
		}
		seen[seq], next = true, max(next, seq+1)
		if r.Received++; r.Received == 1 {
			fmt.Fprintln(os.Stderr, "answered") // whoever has started it waits for that
		}
		r.silent(last, now)
		last = now
		rtts = append(rtts, now.Sub(sent))
		if r.Received == want {
			close(all)
		}
	}
	broken := make(chan error, 1)
	go func() {
		p := make([]byte, f.size)
		for {
			if err := e.receive(p); err != nil {
				broken <- err
				return
			}
			note(binary.BigEndian.Uint64(p), time.Unix(0, int64(binary.BigEndian.Uint64(p[8:]))))
		}
	}()

	var failure error
	end := time.After(f.duration)
	tick := time.NewTicker(f.interval)
	defer tick.Stop()
	p := make([]byte, f.size)
send:
	for {
		binary.BigEndian.PutUint64(p, uint64(r.Sent))
		binary.BigEndian.PutUint64(p[8:], uint64(time.Now().UnixNano()))
		if err := e.send(p); err != nil {
			failure = fmt.Errorf("send message %d: %w", r.Sent, err)
			break
		}
		r.Sent++
		select {
		case <-tick.C:
		case <-end:
			break send
		case <-ctx.Done():
			break send
		case err := <-broken:
			broken <- err
			failure = fmt.Errorf("receive: %w", err)
			break send
		}
	}
	sentAll := time.Now()
	mu.Lock()
	want = r.Sent
	if r.Received == want {
		close(all)
	}
	mu.Unlock()
	if failure == nil {
		select {
		case <-all:
		case <-time.After(f.linger):
		case failure = <-broken:
			broken <- failure
		}
	}
	_ = e.Close() // unblocks the receiver
	<-broken

	r.Lost = r.Sent - r.Received
	if r.Lost > 0 {
		r.silent(last, sentAll)
	}
	slices.Sort(rtts)
	if n := len(rtts); n > 0 {
		r.P50Ms, r.P99Ms, r.MaxMs = ms(rtts[n/2]), ms(rtts[n*99/100]), ms(rtts[n-1])
	}
	return r, failure
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// connEcho is an echo server over UDP or TCP.
type connEcho struct{ net.Conn }

func (c connEcho) send(p []byte) error {
	_, err := c.Write(p)
	if c.LocalAddr().Network() == "udp" {
		return nil // an ICMP error of an earlier datagram is no end of the flow
	}
	return err
}

func (c connEcho) receive(p []byte) error {
	for {
		_, err := io.ReadFull(c, p)
		var op *net.OpError
		if errors.As(err, &op) && c.LocalAddr().Network() == "udp" && !errors.Is(err, net.ErrClosed) {
			continue
		}
		return err
	}
}

// icmpEcho pings the kernel of the other side.
type icmpEcho struct {
	*icmp.PacketConn
	to    net.Addr
	v6    bool
	id    int
	seq   int
	in    []byte
	proto int
}

func dialICMP(host string) (*icmpEcho, error) {
	ip := net.ParseIP(host)
	if ip == nil {
		return nil, fmt.Errorf("%w: %q is no IP address", errUsage, host)
	}
	e := &icmpEcho{to: &net.IPAddr{IP: ip}, v6: ip.To4() == nil, id: os.Getpid() & 0xffff, in: make([]byte, 65536)}
	network, local := "ip4:icmp", "0.0.0.0"
	e.proto = 1 // IANA: ICMP
	if e.v6 {
		network, local = "ip6:ipv6-icmp", "::"
		e.proto = 58 // IANA: ICMPv6
	}
	var err error
	e.PacketConn, err = icmp.ListenPacket(network, local)
	return e, err
}

func (e *icmpEcho) send(p []byte) error {
	m := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: e.id, Seq: e.seq & 0xffff, Data: p}}
	if e.v6 {
		m.Type = ipv6.ICMPTypeEchoRequest
	}
	e.seq++
	b, err := m.Marshal(nil)
	if err != nil {
		return err
	}
	_, _ = e.WriteTo(b, e.to) // "unreachable" now is a lost message, not the end
	return nil
}

func (e *icmpEcho) receive(p []byte) error {
	for {
		n, from, err := e.ReadFrom(e.in)
		if err != nil {
			return err
		}
		m, err := icmp.ParseMessage(e.proto, e.in[:n])
		if err != nil || from.String() != e.to.String() ||
			m.Type != ipv4.ICMPTypeEchoReply && m.Type != ipv6.ICMPTypeEchoReply {
			continue
		}
		if echo, ok := m.Body.(*icmp.Echo); ok && echo.ID == e.id && len(echo.Data) == len(p) {
			copy(p, echo.Data)
			return nil
		}
	}
}
