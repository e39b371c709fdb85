// Package probe makes packets that look like pods' and hands them to the kernel, as if a pod of this node or a far one had sent
// them. What becomes of them, package nft traces; none of them arrives anywhere.
package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/nft"
	"edgemesh/agent/host/plan"
	"edgemesh/internal/cni/conf"
	"edgemesh/internal/membership/mesh"
	"edgemesh/tunnel/inet"
)

// port is one that hardly a rule names.
const port = 53211

// Way is how packets go between a pod of this node and a far one.
type Way struct {
	Own, Far netip.Addr
	Link     string  // by which they leave and come
	MAC      [6]byte // of the neighbour who sends there, where Link is not the TUN
}

// Packet opens a connection.
type Packet struct {
	In, Out  string // interfaces; Out "" where it is not known
	MAC      [6]byte
	Src, Dst netip.Addr
	Proto    uint8
	Port     uint16 // of the destination
}

// Forwarded are packets on a way, one in each protocol and direction; those from far pods only if inward. Where another plugin has the pods,
// none comes from its interfaces: they are not ours.
func (w Way) Forwarded(keep, inward bool) (out []Packet) {
	if !keep {
		out = ofEach(Packet{In: plan.BridgeName, Out: w.Link, Src: w.Own, Dst: w.Far})
	}
	if inward {
		p := Packet{In: w.Link, Out: plan.BridgeName, MAC: w.MAC, Src: w.Far, Dst: w.Own}
		if keep {
			p.Out = ""
		}
		out = append(out, ofEach(p)...)
	}
	return out
}

// Addresses are the last ones of the node's block and of the cluster's range: what a rule says of all pods, it says of them.
func Addresses(f plan.Family) (own, far netip.Addr, ok bool) {
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
	_, far, ok := Addresses(f)
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

// Send hands packets to the kernel: those of pods here through a port of the bridge, far ones through tun or, as if they came in by an uplink or
// VXLAN's interface, through a port that leads there. The ports exist only meanwhile.
func Send(packets []Packet, mark nft.Mark, mtu int, tun func([]byte) error) error {
	ports := map[string]*os.File{}
	for i, p := range packets {
		b := p.bytes(mark, i)
		if p.In == plan.TUNName {
			if err := tun(b); err != nil {
				return fmt.Errorf("write to %s: %w", plan.TUNName, err)
			}
			continue
		}
		port, ok := ports[p.In]
		if !ok {
			var err error
			if port, err = NewPort(fmt.Sprintf("%s%d", PortName, len(ports)), mtu, p.In); err != nil && p.In == plan.BridgeName {
				return fmt.Errorf("port of %s for probes: %w", p.In, err)
			} else if err == nil {
				defer port.Close() // the kernel deletes it then
			}
			ports[p.In] = port // none where the kernel cannot redirect packets (act_mirred): they are not looked at
		}
		frame := PodFrame(b)
		switch {
		case port == nil:
			continue
		case p.In != plan.BridgeName:
			frame = slices.Concat(portMAC, p.MAC[:], frame[12:])
		}
		if _, err := port.Write(frame); err != nil {
			return fmt.Errorf("write to the port that leads to %s: %w", p.In, err)
		}
	}
	return nil
}

// PortName begins the names of ports.
const PortName = "edgemesh-probe"

// portMAC is that of a port which redirects packets. It is not the uplink's, since programs know uplinks by their MAC; and it is set, since
// udev replaces one that is random.
var portMAC = net.HardwareAddr{2, 0, 0, 0xed, 0x9e, 2} //nolint:gochecknoglobals // a constant

// NewPort makes a TAP device whose packets come in by an interface: a port of the bridge, or what redirects them. It goes when it is closed, or
// with this process.
func NewPort(name string, mtu int, to string) (_ *os.File, err error) {
	target, err := netlink.LinkByName(to)
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
	if to == plan.BridgeName {
		err = errors.Join(netlink.LinkSetMaster(link, target), netlink.LinkSetLearning(link, false), netlink.LinkSetFlood(link, false))
	} else {
		at := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
		redirect := netlink.NewMirredAction(target.Attrs().Index)
		redirect.MirredAction = netlink.TCA_INGRESS_REDIR
		err = errors.Join(netlink.LinkSetHardwareAddr(link, portMAC), netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: at}), netlink.FilterAdd(&netlink.U32{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: at.LinkIndex, Parent: netlink.HANDLE_MIN_INGRESS, Priority: 1, Protocol: unix.ETH_P_ALL},
			Actions:     []netlink.Action{redirect},
		}))
	}
	if err = errors.Join(err, netlink.LinkSetMTU(link, mtu), netlink.LinkSetUp(link)); err != nil {
		return nil, err
	}
	return file, nil
}

// PodFrame is a packet as a pod sends it to the bridge.
func PodFrame(packet []byte) []byte {
	kind := []byte{0x08, 0x00}
	if packet[0]>>4 == 6 {
		kind = []byte{0x86, 0xdd}
	}
	return slices.Concat(conf.BridgeMAC(plan.BridgeName), []byte{2, 0, 0, 0xed, 0x9e, 1}, kind, packet)
}
