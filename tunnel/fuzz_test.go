package tunnel_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"edgemesh/tunnel"
	"edgemesh/tunnel/tunneltest"
	"edgemesh/tunnel/virtio"
)

// FuzzReceive: whatever a peer sends, nothing but its own packets for our own
// blocks reaches the device, and everything else is counted.
func FuzzReceive(f *testing.F) {
	hello := []byte{1, 0, 0, 28, 1, 0, 0, 0}
	for _, v := range []uint64{1, 1, 0} {
		hello = binary.BigEndian.AppendUint64(hello, v)
	}
	packet := func(typ byte, vnet, p []byte) []byte {
		return slices.Concat([]byte{typ, 0, byte((len(p) + 10) >> 8), byte(len(p) + 10)}, vnet, p)
	}
	plain := make([]byte, virtio.HeaderLen)
	good := packet(2, plain, tunneltest.TCPPacket(addrB, addrA, []byte("x")))
	f.Add(slices.Concat(good, good, []byte{3, 0, 0, 0}, good))
	f.Add(packet(2, []byte{1, 1, 40, 0, 0xb4, 5, 20, 0, 16, 0}, tunneltest.TCPPacket(addrB, addrA, make([]byte, 3000))))
	f.Add(packet(2, plain, tunneltest.UDPPacket(addrB6, addrA6, nil)))
	f.Add(packet(2, plain, tunneltest.UDPPacket(addrA, addrB, nil)))
	f.Add(packet(4, nil, nil))

	own, theirs := netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("10.244.2.0/24")
	own6, theirs6 := netip.MustParsePrefix("fd00:1::/64"), netip.MustParsePrefix("fd00:2::/64")
	f.Fuzz(func(t *testing.T, wire []byte) {
		written := uint64(0)
		dev := tunneltest.NewDevice(func(b []byte) error {
			written++
			p := b[virtio.HeaderLen:]
			var src, dst netip.Addr
			if p[0]>>4 == 4 {
				src, dst = netip.AddrFrom4([4]byte(p[12:])), netip.AddrFrom4([4]byte(p[16:]))
			} else {
				src, dst = netip.AddrFrom16([16]byte(p[8:])), netip.AddrFrom16([16]byte(p[24:]))
			}
			if !theirs.Contains(src) && !theirs6.Contains(src) || !own.Contains(dst) && !own6.Contains(dst) {
				t.Errorf("%v to %v was let in", src, dst)
			}
			return nil
		})
		tun := tunnel.New(tunnel.Config{Device: dev, Underlay: tunneltest.NewNet().Underlay(nodeA), Log: slog.New(slog.DiscardHandler)})
		defer tun.Close()
		tun.SetRoutes(routes(nodeA))
		err := tun.Receive(nodeB, tunnel.StreamLane, tunneltest.NewStream(io.MultiReader(bytes.NewReader(hello), bytes.NewReader(wire)), nil))
		s := tun.Stats().Total
		if s.RxPackets != written {
			t.Errorf("%d packets counted, %d written", s.RxPackets, written)
		}
		if errors.Is(err, tunnel.ErrMalformed) && s.Drops.Total() == 0 {
			t.Errorf("%v, and nothing counted", err)
		}
	})
}
