// Package echo sends ICMP echo requests through the host's own stack, which tests what a pod's packet meets: routes,
// firewall, TUN, tunnel, the far bridge.
package echo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// Wait is how long one request waits for its answer.
const Wait = 2 * time.Second

const (
	protocolICMP   = 1 // IANA protocol numbers
	protocolICMPv6 = 58
)

// Result is the outcome of one request.
type Result struct {
	Seq int           // from 1
	RTT time.Duration // of an answer
	Err error         // nil with an answer
}

// ErrLost means that no answer came in time.
var ErrLost = errors.New("no answer")

// Run sends count requests to ip, one per interval, without end if count is 0, and calls each with the outcome of every
// one as soon as it is known. It returns when all outcomes are known, or with ctx's error.
func Run(ctx context.Context, ip netip.Addr, count int, interval time.Duration, each func(Result)) error {
	return RunSize(ctx, ip, 0, count, interval, each)
}

// RunSize is Run with packets of so many bytes, IP header included, or of the least size.
func RunSize(ctx context.Context, ip netip.Addr, size, count int, interval time.Duration, each func(Result)) error {
	e := &echoes{ip: ip, size: size, count: count, id: rand.IntN(1 << 16), sent: map[int]time.Time{}, each: each,
		request: ipv4.ICMPTypeEcho, answer: ipv4.ICMPTypeEchoReply, proto: protocolICMP}
	network := "ip4:icmp"
	if ip.Is6() {
		network, e.proto = "ip6:ipv6-icmp", protocolICMPv6
		e.request, e.answer = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	var err error
	if e.conn, err = icmp.ListenPacket(network, ""); err != nil {
		return fmt.Errorf("open icmp socket: %w", err)
	}
	defer e.conn.Close()
	defer context.AfterFunc(ctx, func() { _ = e.conn.SetReadDeadline(time.Unix(1, 0)) })()
	for ctx.Err() == nil {
		wake, more := e.advance(time.Now(), interval)
		if !more {
			return nil
		}
		if err := e.read(ctx, wake); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// echoes is one Run.
type echoes struct {
	ip              netip.Addr
	size            int // of a packet, in bytes
	count, id, last int // last is the latest request's number
	next            time.Time
	sent            map[int]time.Time // of those without an outcome
	each            func(Result)
	conn            *icmp.PacketConn
	request, answer icmp.Type
	proto           int
}

// advance sends what is due and gives up what waited for too long. It returns when something is due again; more is false
// when all outcomes are known.
func (e *echoes) advance(now time.Time, interval time.Duration) (wake time.Time, more bool) {
	if (e.count == 0 || e.last < e.count) && !now.Before(e.next) {
		e.last++
		e.next = now.Add(interval)
		if err := e.send(); err != nil {
			e.each(Result{Seq: e.last, Err: err})
		} else {
			e.sent[e.last] = now
		}
	}
	wake = e.next
	if e.count > 0 && e.last == e.count {
		wake = now.Add(Wait)
	}
	for seq, at := range e.sent {
		if end := at.Add(Wait); !now.Before(end) {
			delete(e.sent, seq)
			e.each(Result{Seq: seq, Err: ErrLost})
		} else if end.Before(wake) {
			wake = end
		}
	}
	return wake, len(e.sent) > 0 || e.count == 0 || e.last < e.count
}

// read waits until wake for an answer.
func (e *echoes) read(ctx context.Context, wake time.Time) error {
	if err := e.conn.SetReadDeadline(wake); err != nil {
		return fmt.Errorf("icmp socket: %w", err)
	}
	if ctx.Err() != nil {
		return nil // its deadline may have been before ours
	}
	var buf [1 << 16]byte // a jumbo frame's answer, too
	n, from, err := e.conn.ReadFrom(buf[:])
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read icmp: %w", err)
	}
	seq, ok := parse(buf[:n], e.proto, e.answer, e.id, from, e.ip)
	for s, at := range e.sent {
		if ok && s&0xffff == seq { // as much of it is in the packet
			delete(e.sent, s)
			e.each(Result{Seq: s, RTT: time.Since(at)})
		}
	}
	return nil
}

func (e *echoes) send() error {
	m := icmp.Message{Type: e.request, Body: &icmp.Echo{ID: e.id, Seq: e.last & 0xffff, Data: e.data()}}
	b, err := m.Marshal(nil) // the kernel fills in the ICMPv6 checksum
	if err != nil {
		return err
	}
	_, err = e.conn.WriteTo(b, &net.IPAddr{IP: e.ip.AsSlice()})
	return err
}

// data fills a request to the requested size.
func (e *echoes) data() []byte {
	const icmpHeader = 8 // RFC 792, RFC 4443 section 4.1
	header := ipv4.HeaderLen + icmpHeader
	if e.ip.Is6() {
		header = ipv6.HeaderLen + icmpHeader
	}
	text := []byte("edgemesh-agent ping")
	return append(text, make([]byte, max(0, e.size-header-len(text)))...)
}

// parse returns the sequence number if b answers one of our requests.
func parse(b []byte, proto int, want icmp.Type, id int, from net.Addr, ip netip.Addr) (int, bool) {
	if a, ok := from.(*net.IPAddr); !ok || !a.IP.Equal(ip.AsSlice()) {
		return 0, false
	}
	m, err := icmp.ParseMessage(proto, b)
	if err != nil || m.Type != want {
		return 0, false
	}
	e, ok := m.Body.(*icmp.Echo)
	if !ok || e.ID != id {
		return 0, false
	}
	return e.Seq, true
}
