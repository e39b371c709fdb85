package stun

import (
	"net"
	"net/netip"

	pion "github.com/pion/stun/v3"
)

const (
	headerLen          = 20 // bytes of a message before its attributes (RFC 8489, section 5)
	attributeHeaderLen = 4  // of an attribute before its value (section 14)
)

// newRequest returns a Binding request that PADDING (RFC 5780) makes minRequest bytes long.
func newRequest() (*pion.Message, error) {
	m, err := pion.Build(pion.TransactionID, pion.BindingRequest)
	if err != nil {
		return nil, err
	}
	m.Add(pion.AttrPadding, make([]byte, minRequest-headerLen-attributeHeaderLen))
	return m, nil
}

// decode reads a message of a type. It copies nothing: p must not change while m is in use.
func decode(p []byte, want pion.MessageType) (m *pion.Message, ok bool) {
	m = &pion.Message{Raw: p}
	return m, m.Decode() == nil && m.Type == want
}

// addrPort returns an attribute's address as get reads it; an invalid one if there is none, or it has no port.
func addrPort(m *pion.Message, attribute pion.AttrType, get func() (net.IP, int, error)) netip.AddrPort {
	// The library panics at an empty value and fills up an address that was cut short.
	v, err := m.Get(attribute)
	if err != nil || len(v) != 8 && len(v) != 20 || v[1] != map[int]byte{8: 1, 20: 2}[len(v)] {
		return netip.AddrPort{}
	}
	ip, port, err := get()
	if err != nil || port == 0 {
		return netip.AddrPort{}
	}
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), uint16(port))
}

// mapped is the address that the server saw.
func mapped(m *pion.Message) netip.AddrPort {
	return addrPort(m, pion.AttrXORMappedAddress, func() (net.IP, int, error) {
		var a pion.XORMappedAddress
		err := a.GetFrom(m)
		return a.IP, a.Port, err
	})
}

// other is another socket of the server.
func other(m *pion.Message) netip.AddrPort {
	return addrPort(m, pion.AttrOtherAddress, func() (net.IP, int, error) {
		var a pion.OtherAddress
		err := a.GetFrom(m)
		return a.IP, a.Port, err
	})
}
