package capture

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"edgemesh/agent/control"
	policy "edgemesh/agent/policy/compile"
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
	src, dst, _ := addresses(packet)
	return m.Between(src, dst)
}

// Between does the same of two addresses.
func (m *Match) Between(src, dst netip.Addr) *control.PeerStatus {
	if m.filter.Pod.IsValid() && src != m.filter.Pod && dst != m.filter.Pod {
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

// header is what a packet says of itself. Without ports they are 0.
type header struct {
	src, dst netip.AddrPort
	protocol string
	ports    bool
	later    bool // a fragment but the first
}

func headerOf(b []byte) (h header, ok bool) {
	src, dst, ok := addresses(b)
	if !ok {
		return h, false
	}
	proto, at := b[9], int(b[0]&15)*4
	if src.Is6() {
		proto, at = b[6], 40
	}
	h.protocol = policy.ProtocolName(proto)
	const offset = 0x1fff // of a fragment (RFC 791): only the first one has ports
	h.later = src.Is4() && binary.BigEndian.Uint16(b[6:])&offset != 0
	h.src, h.dst = netip.AddrPortFrom(src, 0), netip.AddrPortFrom(dst, 0)
	if _, has := policy.Protocol(h.protocol); has && !h.later && len(b) >= at+4 {
		h.src, h.dst = netip.AddrPortFrom(src, binary.BigEndian.Uint16(b[at:])), netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[at+2:]))
		h.ports = true
	}
	return h, true
}

// Line describes a packet for people: addresses, protocol, ports.
func Line(p Packet) string {
	h, ok := headerOf(p.Data)
	if !ok {
		return fmt.Sprintf("%d bytes, not IP", p.Size)
	}
	if h.protocol[0] <= '9' {
		h.protocol = "protocol " + h.protocol
	}
	switch {
	case h.later:
		return fmt.Sprintf("%s > %s %s, later fragment, %d bytes", h.src.Addr(), h.dst.Addr(), h.protocol, p.Size)
	case h.ports:
		return fmt.Sprintf("%s > %s %s, %d bytes", h.src, h.dst, h.protocol, p.Size)
	}
	return fmt.Sprintf("%s > %s %s, %d bytes", h.src.Addr(), h.dst.Addr(), h.protocol, p.Size)
}
