package conf

import (
	"crypto/sha256"
	"net"
	"net/netip"
)

// BridgeMAC is the hardware address of a bridge, derived from its name. An address chosen
// by the kernel changes with the bridge's ports, and pods would lose their gateway each
// time. It never leaves the node, so nodes may share it.
func BridgeMAC(bridge string) net.HardwareAddr {
	return hashMAC([]byte("edgemesh bridge " + bridge))
}

// PodMAC is the hardware address of a pod, derived from one of its addresses, so that
// neighbour caches stay valid when a pod comes back with its address.
// IPv4 addresses are embedded, IPv6 addresses hashed.
func PodMAC(a netip.Addr) net.HardwareAddr {
	if a.Is4() {
		b := a.As4()
		return net.HardwareAddr{0x0a, 0x58, b[0], b[1], b[2], b[3]}
	}
	b := a.As16()
	return hashMAC(b[:])
}

// hashMAC is a locally administered unicast address with five hashed bytes. Its 0x0e
// distinguishes it from an embedded address.
func hashMAC(b []byte) net.HardwareAddr {
	h := sha256.Sum256(b)
	return net.HardwareAddr{0x0e, h[0], h[1], h[2], h[3], h[4]}
}
