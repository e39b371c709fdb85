// Package probe makes packets that look like pods' and hands them to the kernel, as if a pod of this node or a far one had sent
// them. What becomes of them, package nft traces; none of them arrives anywhere.
package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/nft"
	"edgemesh/agent/host/plan"
	"edgemesh/cni/conf"
	"edgemesh/internal/membership/mesh"
	"edgemesh/tunnel/inet"
)

// port is one that hardly a rule names.
const port = 53211

// Packet opens a connection.
type Packet struct {
	In, Out  string // interfaces; Out "" where it is not known
	Src, Dst netip.Addr
	Proto    uint8
	Port     uint16 // of the destination
}

// Forwarded are packets between a pod of this node and a far one, one in each protocol and direction; those from far ones only
// if inward. Where another plugin has the pods, none comes from its interfaces: they are not ours.
func Forwarded(f plan.Family, inward bool) (out []Packet) {
	own, far, ok := addresses(f)
	if !ok {
		return nil
	}
	if !f.Keep {
		out = ofEach(Packet{In: plan.BridgeName, Out: plan.TUNName, Src: own, Dst: far})
	}
	if inward {
		p := Packet{In: plan.TUNName, Out: plan.BridgeName, Src: far, Dst: own}
		if f.Keep {
			p.Out = ""
		}
		out = append(out, ofEach(p)...)
	}
	return out
}

// addresses are the last ones of the node's block and of the cluster's range: what a rule says of all pods, it says of them.
func addresses(f plan.Family) (own, far netip.Addr, ok bool) {
	if !f.Wanted || len(f.Blocks) == 0 {
		return own, far, false
	}
	own = mesh.LastAddr(f.Blocks[0]).Prev()
	for _, r := range f.Ranges {
		if far = mesh.LastAddr(r); !f.Own(far) {
			return own, far, own != f.Gateway
		}
	}
	return own, far, false
}

// ToNode is what opens a connection from another node, or from a pod where no nodes are given, to a port of this one.
func ToNode(f plan.Family, nodes []netip.Prefix, port uint16) (p Packet, ok bool) {
	_, far, ok := addresses(f)
	for _, n := range nodes {
		if n.Addr().Is6() == f.V6 {
			far = mesh.Gateway(n)
		}
	}
	return Packet{In: plan.TUNName, Src: far, Dst: f.Gateway, Proto: unix.IPPROTO_TCP, Port: port}, ok && f.Gateway.IsValid()
}

// ofEach is a packet in each protocol.
func ofEach(p Packet) []Packet {
	p.Port = port
	icmp := uint8(unix.IPPROTO_ICMP)
	if p.Src.Is6() {
		icmp = unix.IPPROTO_ICMPV6
	}
	var out []Packet
	for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, icmp} {
		p.Proto = proto
		out = append(out, p)
	}
	return out
}

// Name is the protocol's.
func (p Packet) Name() string {
	return map[uint8]string{unix.IPPROTO_TCP: "TCP", unix.IPPROTO_UDP: "UDP", unix.IPPROTO_ICMP: "ICMP", unix.IPPROTO_ICMPV6: "ICMPv6"}[p.Proto]
}

// bytes is the packet with its mark and number.
func (p Packet) bytes(mark nft.Mark, number int) []byte {
	id := append(mark[:], byte(number))
	var t []byte // transport header and payload
	switch p.Proto {
	case unix.IPPROTO_TCP:
		const syn = 2
		t = slices.Concat(ports(p.Port), id, []byte{5 << 4, syn, 0xfa, 0xf0, 0, 0, 0, 0})
	case unix.IPPROTO_UDP:
		t = slices.Concat(ports(p.Port), []byte{0, 16, 0, 0}, id)
	case unix.IPPROTO_ICMP:
		t = append([]byte{8, 0, 0, 0, 0, 0, 0, 1}, id...) // echo request
	case unix.IPPROTO_ICMPV6:
		t = append([]byte{128, 0, 0, 0, 0, 0, 0, 1}, id...)
	}
	return inet.Packet(p.Src, p.Dst, p.Proto, t)
}

// ports are those of a TCP or UDP header.
func ports(to uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, port), to)
}

// Send hands packets to the kernel: those of pods here through a port of the bridge which exists only meanwhile, far ones
// through tun.
func Send(packets []Packet, mark nft.Mark, mtu int, tun func([]byte) error) error {
	var pod *os.File
	for i, p := range packets {
		b := p.bytes(mark, i)
		if p.In == plan.TUNName {
			if err := tun(b); err != nil {
				return fmt.Errorf("write to %s: %w", plan.TUNName, err)
			}
			continue
		}
		if pod == nil {
			var err error
			if pod, err = NewPort(PortName, mtu); err != nil {
				return fmt.Errorf("port of %s for probes: %w", plan.BridgeName, err)
			}
			defer pod.Close() // the kernel deletes it then
		}
		if _, err := pod.Write(Frame(b)); err != nil {
			return fmt.Errorf("write to %s: %w", PortName, err)
		}
	}
	return nil
}

// PortName is the name of the bridge's port.
const PortName = "edgemesh-probe"

// NewPort plugs a TAP device into the bridge. It goes when it is closed, or with this process.
func NewPort(name string, mtu int) (_ *os.File, err error) {
	bridge, err := netlink.LinkByName(plan.BridgeName)
	if err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.TxQLen = name, 1 // nobody reads what the bridge sends to all
	tap := &netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_NO_PI, NonPersist: true, Queues: 1}
	if err := netlink.LinkAdd(tap); err != nil {
		return nil, err
	}
	file := tap.Fds[0]
	defer func() {
		if err != nil {
			_ = file.Close()
		}
	}()
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	_ = netlink.LinkSetIP6AddrGenMode(link, nl.IN6_ADDR_GEN_MODE_NONE) // no address: a kernel without IPv6 refuses
	return file, errors.Join(netlink.LinkSetMTU(link, mtu), netlink.LinkSetMaster(link, bridge), netlink.LinkSetLearning(link, false),
		netlink.LinkSetFlood(link, false), netlink.LinkSetUp(link))
}

// Frame is a packet as a pod sends it to the bridge.
func Frame(packet []byte) []byte {
	kind := []byte{0x08, 0x00}
	if packet[0]>>4 == 6 {
		kind = []byte{0x86, 0xdd}
	}
	return slices.Concat(conf.BridgeMAC(plan.BridgeName), []byte{2, 0, 0, 0xed, 0x9e, 1}, kind, packet)
}
