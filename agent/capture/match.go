package capture

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"edgemesh/agent/control"
	"edgemesh/internal/wording"
)

// Filter selects packets to and from other nodes' pods.
type Filter struct {
	Peer string     // a node's name; "" all
	Pod  netip.Addr // source or destination; zero: all
}

// Match knows whose a packet is, by a status of the agent.
type Match struct {
	filter Filter
	blocks []block
}

type block struct {
	prefix netip.Prefix
	peer   *control.PeerStatus
}

// NewMatch reads a status.
func NewMatch(st control.Status, f Filter) *Match {
	m := &Match{filter: f}
	for i := range st.Peers {
		p := &st.Peers[i]
		if f.Peer != "" && p.Node != f.Peer {
			continue
		}
		for _, text := range p.PodCIDRs {
			if prefix, err := netip.ParsePrefix(text); err == nil {
				m.blocks = append(m.blocks, block{prefix, p})
			}
		}
	}
	return m
}

// Peer returns the node that a packet is to or from; nil if it is not wanted.
func (m *Match) Peer(packet []byte) *control.PeerStatus {
	src, dst, ok := addresses(packet)
	if !ok || m.filter.Pod.IsValid() && src != m.filter.Pod && dst != m.filter.Pod {
		return nil
	}
	for _, b := range m.blocks {
		if b.prefix.Contains(src) || b.prefix.Contains(dst) {
			return b.peer
		}
	}
	return nil
}

// Comment says who the peer is, and by which path packets reach it now.
func Comment(p *control.PeerStatus) string {
	text := "peer " + p.Node + ", path " + p.Path
	if p.Transport != "" {
		text += "/" + p.Transport
	}
	if p.Relay != "" {
		text += " via " + p.Relay
	}
	return wording.Foreign(text, 1<<10)
}

// addresses are an IP packet's.
func addresses(b []byte) (src, dst netip.Addr, ok bool) {
	const v4, v6 = 20, 40
	switch {
	case len(b) >= v4 && b[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20])), true
	case len(b) >= v6 && b[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), true
	}
	return src, dst, false
}

// Line describes a packet for people: addresses, protocol, ports.
func Line(p Packet) string {
	src, dst, ok := addresses(p.Data)
	if !ok {
		return fmt.Sprintf("%d bytes, not IP", p.Size)
	}
	proto, at := p.Data[9], int(p.Data[0]&15)*4
	if src.Is6() {
		proto, at = p.Data[6], 40
	}
	names := map[byte]string{1: "ICMP", 6: "TCP", 17: "UDP", 58: "ICMPv6"} // IANA protocol numbers
	name := names[proto]
	if name == "" {
		name = fmt.Sprintf("protocol %d", proto)
	}
	const offset = 0x1fff // of a fragment (RFC 791): only the first one has ports
	if src.Is4() && binary.BigEndian.Uint16(p.Data[6:])&offset != 0 {
		return fmt.Sprintf("%s > %s %s, later fragment, %d bytes", src, dst, name, p.Size)
	}
	if (proto == 6 || proto == 17) && len(p.Data) >= at+4 {
		from, to := binary.BigEndian.Uint16(p.Data[at:]), binary.BigEndian.Uint16(p.Data[at+2:])
		return fmt.Sprintf("%s > %s %s, %d bytes", netip.AddrPortFrom(src, from), netip.AddrPortFrom(dst, to), name, p.Size)
	}
	return fmt.Sprintf("%s > %s %s, %d bytes", src, dst, name, p.Size)
}
