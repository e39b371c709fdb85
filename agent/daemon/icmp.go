package daemon

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

	"edgemesh/agent/control"
)

const (
	pingInterval = 250 * time.Millisecond
	pingWait     = 2 * time.Second // for an answer to the last probe

	protocolICMP   = 1 // IANA protocol numbers
	protocolICMPv6 = 58
)

// echo sends count ICMP echo requests to ip through the host's own stack, which tests
// what a pod's packet meets: routes, firewall, TUN, tunnel, the far bridge.
// It returns when all are answered or pingWait has passed since the last one.
func echo(ctx context.Context, ip netip.Addr, count int) ([]control.PingResult, error) {
	network, proto := "ip4:icmp", protocolICMP
	var request icmp.Type = ipv4.ICMPTypeEcho
	var answer icmp.Type = ipv4.ICMPTypeEchoReply
	if ip.Is6() {
		network, proto = "ip6:ipv6-icmp", protocolICMPv6
		request, answer = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	conn, err := icmp.ListenPacket(network, "")
	if err != nil {
		return nil, fmt.Errorf("open icmp socket: %w", err)
	}
	defer conn.Close()

	id := rand.IntN(1 << 16)
	results := make([]control.PingResult, count)
	sent := make([]time.Time, count)
	for i := range results {
		results[i] = control.PingResult{Seq: i + 1, Error: "no answer"}
	}
	buf := make([]byte, 1500)
	deadline := time.Now().Add(time.Duration(count-1)*pingInterval + pingWait)
	next, pending := 0, count
	for pending > 0 && time.Now().Before(deadline) && ctx.Err() == nil {
		if next < count && (next == 0 || time.Since(sent[next-1]) >= pingInterval) {
			sent[next] = time.Now()
			if err := sendEcho(conn, request, ip, id, next); err != nil {
				results[next].Error = err.Error()
				pending--
			}
			next++
		}
		wake := deadline
		if next < count {
			wake = sent[next-1].Add(pingInterval)
		}
		if err := conn.SetReadDeadline(wake); err != nil {
			return nil, fmt.Errorf("icmp socket: %w", err)
		}
		n, from, err := conn.ReadFrom(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read icmp: %w", err)
		}
		seq, ok := echoAnswer(buf[:n], proto, answer, id, from, ip)
		if !ok || seq >= next || results[seq].RTTMs != nil {
			continue
		}
		ms := float64(time.Since(sent[seq]).Microseconds()) / 1000
		results[seq].RTTMs, results[seq].Error = &ms, ""
		pending--
	}
	return results[:next], ctx.Err()
}

func sendEcho(conn *icmp.PacketConn, t icmp.Type, ip netip.Addr, id, seq int) error {
	m := icmp.Message{Type: t, Body: &icmp.Echo{ID: id, Seq: seq, Data: []byte("edgemesh-agent ping")}}
	b, err := m.Marshal(nil) // the kernel fills in the ICMPv6 checksum
	if err != nil {
		return err
	}
	_, err = conn.WriteTo(b, &net.IPAddr{IP: ip.AsSlice()})
	return err
}

// echoAnswer returns the sequence number if b answers one of our requests.
func echoAnswer(b []byte, proto int, want icmp.Type, id int, from net.Addr, ip netip.Addr) (int, bool) {
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
