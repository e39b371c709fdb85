// Package virtiotest builds the frames that a kernel hands over, without the code that they test.
package virtiotest

import (
	"encoding/binary"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/virtio"
)

// Sum is RFC 1071 word by word: the reference for the code under test.
func Sum(b []byte, start uint32) uint16 {
	s := start
	for i := 0; i < len(b); i += 2 {
		w := uint32(b[i]) << 8
		if i+1 < len(b) {
			w |= uint32(b[i+1])
		}
		s += w
		s = s>>16 + s&0xffff
	}
	return uint16(s>>16 + s&0xffff)
}

// PseudoSum is the sum of the pseudo header of a packet whose transport header
// starts at l4.
func PseudoSum(pkt []byte, l4 int, proto byte) uint16 {
	addrs := pkt[12:20]
	if pkt[0]>>4 == 6 {
		addrs = pkt[8:40]
	}
	return Sum(addrs, uint32(proto)+uint32(len(pkt)-l4))
}

// Super describes a super-segment to build.
type Super struct {
	V6, UDP          bool
	IPOptions        int // bytes: IPv4 options, or IPv6 destination options
	TCPOptions       int // bytes
	Size             int
	Payload          []byte
	Flags            byte // of TCP
	Seq              uint32
	ID               uint16
	ECN              bool
	Addresses        [32]byte
	SPort, DPort     uint16
	TCPOptionContent byte
}

// Proto is the transport protocol.
func (s Super) Proto() byte {
	if s.UDP {
		return inet.ProtoUDP
	}
	return inet.ProtoTCP
}

// Frame builds what the kernel would hand over.
func (s Super) Frame() []byte {
	var ip []byte
	if s.V6 {
		ip = make([]byte, 40+s.IPOptions)
		ip[0], ip[6], ip[7] = 0x60, s.Proto(), 64
		copy(ip[8:40], s.Addresses[:])
		if s.IPOptions > 0 {
			ip[6] = 60
			ip[40], ip[41] = s.Proto(), byte(s.IPOptions/8-1)
			ip[42], ip[43] = 1, byte(s.IPOptions-4) // PadN
		}
	} else {
		ip = make([]byte, 20+s.IPOptions)
		ip[0], ip[8], ip[9] = 0x45+byte(s.IPOptions/4), 64, s.Proto()
		binary.BigEndian.PutUint16(ip[4:], s.ID)
		ip[6] = 0x40
		copy(ip[12:20], s.Addresses[:])
		for i := 20; i < len(ip); i++ {
			ip[i] = 1 // no operation
		}
	}
	l4 := make([]byte, 8)
	offset := inet.UDPChecksum
	if s.UDP {
		binary.BigEndian.PutUint16(l4[4:], uint16(8+len(s.Payload)))
	} else {
		offset = inet.TCPChecksum
		l4 = make([]byte, 20+s.TCPOptions)
		binary.BigEndian.PutUint32(l4[4:], s.Seq)
		l4[12], l4[13] = byte(len(l4)/4)<<4, s.Flags
		for i := 20; i < len(l4); i++ {
			l4[i] = s.TCPOptionContent
		}
	}
	binary.BigEndian.PutUint16(l4, s.SPort)
	binary.BigEndian.PutUint16(l4[2:], s.DPort)

	pkt := append(append(append([]byte{}, ip...), l4...), s.Payload...)
	if s.V6 {
		binary.BigEndian.PutUint16(pkt[4:], uint16(len(pkt)-40))
	} else {
		binary.BigEndian.PutUint16(pkt[2:], uint16(len(pkt)))
		binary.BigEndian.PutUint16(pkt[10:], ^Sum(pkt[:len(ip)], 0))
	}
	binary.BigEndian.PutUint16(pkt[len(ip)+offset:], PseudoSum(pkt, len(ip), s.Proto()))

	hdr := make([]byte, virtio.HeaderLen)
	hdr[0] = virtio.NeedsChecksum
	hdr[1] = virtio.GSOTCPv4
	switch {
	case s.UDP:
		hdr[1] = virtio.GSOUDP
	case s.V6:
		hdr[1] = virtio.GSOTCPv6
	}
	if s.ECN && !s.UDP {
		hdr[1] |= virtio.GSOECN
	}
	binary.LittleEndian.PutUint16(hdr[2:], uint16(len(ip)+len(l4)))
	binary.LittleEndian.PutUint16(hdr[4:], uint16(s.Size))
	binary.LittleEndian.PutUint16(hdr[6:], uint16(len(ip)))
	binary.LittleEndian.PutUint16(hdr[8:], uint16(offset))
	return append(hdr, pkt...)
}

// Plain builds the frame of one packet, as large as it may be, whose checksum is partial.
func (s Super) Plain() []byte {
	f := s.Frame()
	f[1] = virtio.GSONone
	clear(f[2:6])
	return f
}
