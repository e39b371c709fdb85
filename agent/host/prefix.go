package host

import (
	"net"
	"net/netip"

	"edgemesh/agent/mesh"
)

// blockGateway is the gateway of a block with the block's prefix length.
func blockGateway(block netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(mesh.Gateway(block), block.Bits())
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// prefixOf is the reverse of ipNet; nil is the invalid prefix.
func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	a, _ := netip.AddrFromSlice(n.IP)
	bits, size := n.Mask.Size()
	if a = a.Unmap(); a.Is4() && size == 128 {
		bits -= 96
	}
	return netip.PrefixFrom(a, bits)
}
