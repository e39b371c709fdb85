// Package inettest builds IP packets for tests. Checksums are left zero.
package inettest

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// IPv4 builds a packet from 10.244.1.5 to 10.244.2.6; words of the header can be changed afterwards.
func IPv4(proto byte, options, l4 []byte) []byte {
	b := []byte{
		byte(0x40 | (5 + len(options)/4)), 0, 0, 0, // version and header length, DSCP, length
		0x12, 0x34, 0, 0, // identification, fragment
		64, proto, 0, 0, // time to live, protocol, checksum
		10, 244, 1, 5,
		10, 244, 2, 6,
	}
	b = slices.Concat(b, options, l4)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	return b
}

// IPv6 builds a packet from fd00:1::5 to fd00:2::6; next is the first of payload's headers.
func IPv6(next byte, payload []byte) []byte {
	b := make([]byte, 40)
	b[0], b[6], b[7] = 0x60, next, 64
	src, dst := netip.MustParseAddr("fd00:1::5").As16(), netip.MustParseAddr("fd00:2::6").As16()
	copy(b[8:], src[:])
	copy(b[24:], dst[:])
	binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
	return append(b, payload...)
}

// TCP builds a header of 20 bytes.
func TCP(sport, dport uint16) []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, sport)
	binary.BigEndian.PutUint16(b[2:], dport)
	b[12] = 5 << 4
	return b
}

// UDP builds a header whose length field is zero.
func UDP(sport, dport uint16) []byte { return TCP(sport, dport)[:8] }

// With changes bytes of b and returns it.
func With(b []byte, at int, v ...byte) []byte {
	copy(b[at:], v)
	return b
}
