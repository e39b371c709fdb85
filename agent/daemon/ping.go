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

	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"edgemesh/agent/control"
	"edgemesh/agent/mesh"
)

// pingTimeout bounds one ping: clients wait for 10 s.
const pingTimeout = 9500 * time.Millisecond

// Ping implements control.Backend. The error is ErrNoTarget, or says why no
// probe could be made; lost probes are in the reply.
func (b *backend) Ping(ctx context.Context, r control.PingRequest) (control.PingReply, error) {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	plan, _ := b.force.plan()
	node, ip, err := target(plan.Plan, r.Target)
	if err != nil {
		return control.PingReply{}, err
	}
	out := control.PingReply{Target: r.Target, Node: node.Name}
	if ip.IsValid() {
		out.PodIP = ip.String()
		out.Probes, err = echo(ctx, ip, r.Count)
	} else if node.Name == plan.Self.Name {
		return out, fmt.Errorf("ping %s: that is this node", r.Target)
	} else if gateway := b.lan.gateway(node); gateway.IsValid() { // the path in use is the kernel's
		out.Probes, err = echo(ctx, gateway, r.Count)
	} else {
		out.Probes = b.pingNode(ctx, plan.id(node.PeerID), r.Count)
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return out, fmt.Errorf("ping %s: %w", r.Target, err)
	}
	if node.Name != plan.Self.Name {
		p, _ := b.node.PeerStatus(plan.id(node.PeerID))
		st := describeLAN(b.lan, node, control.PeerStatus{Path: string(p.Path.Kind), Transport: p.Path.Transport})
		out.Path, out.Transport = st.Path, st.Transport
	} else {
		out.Path = "local"
	}
	summarize(&out)
	return out, nil
}

// target finds the member a ping means: by name, or as owner of a pod's address.
func target(plan mesh.Plan, text string) (mesh.Node, netip.Addr, error) {
	all := append([]mesh.Node{plan.Self}, plan.Members...)
	ip, err := netip.ParseAddr(text)
	if err != nil {
		for _, n := range all {
			if n.Name == text {
				return n, netip.Addr{}, nil
			}
		}
		return mesh.Node{}, ip, fmt.Errorf("ping %s: %w (see `edgemesh-agent status` for the names)", text, ErrNoTarget)
	}
	for _, n := range all {
		for _, b := range n.PodCIDRs {
			if b.Contains(ip) {
				return n, ip, nil
			}
		}
	}
	return mesh.Node{}, ip, fmt.Errorf("ping %s: %w: no member's podCIDRs contain it", text, ErrNoTarget)
}

// pingNode sends count authenticated echoes over the path in use.
func (b *backend) pingNode(ctx context.Context, id peer.ID, count int) []control.PingResult {
	var out []control.PingResult
	for seq := 1; seq <= count; seq++ {
		r := control.PingResult{Seq: seq}
		started := time.Now()
		probe, cancel := context.WithTimeout(ctx, pingWait)
		rtt, path, err := b.node.Ping(probe, id)
		cancel()
		if err != nil {
			r.Error = err.Error()
		} else {
			r.RTTMs, r.Path = millis(rtt), string(path.Kind)
		}
		out = append(out, r)
		if seq == count || ctx.Err() != nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(started.Add(pingInterval))):
		}
	}
	return out
}

// summarize fills in the reply's numbers from its probes.
func summarize(r *control.PingReply) {
	r.Sent = len(r.Probes)
	var sum float64
	for _, p := range r.Probes {
		if p.RTTMs == nil {
			continue
		}
		v := *p.RTTMs
		r.Received++
		sum += v
		if r.MinMs == nil || v < *r.MinMs {
			r.MinMs = &v
		}
		if r.MaxMs == nil || v > *r.MaxMs {
			r.MaxMs = &v
		}
	}
	if r.Received > 0 {
		avg := sum / float64(r.Received)
		r.AvgMs = &avg
	}
}

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
