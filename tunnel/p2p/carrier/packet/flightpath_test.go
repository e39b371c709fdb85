package packet

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/carrier/flight"
	"edgemesh/tunnel/p2p/carrier/sealed"
)

// noLanes take what comes, and have nothing to send.
type noLanes struct{ Lanes }

func (noLanes) Datagram([]byte) {}

// A packet that comes again, from wherever, is not answered again, and says nothing of where the other end is.
func TestReplayedChallenge(t *testing.T) {
	suite, secret := uint16(0x1301), bytes.Repeat([]byte{7}, sealed.SecretLen)
	seal, err := sealed.NewSealer(suite, secret, 1)
	if err != nil {
		t.Fatal(err)
	}
	x := &flightPath{Flight: &Flight{}, of: newFlightPeer(1, noLanes{}, flight.NewMemory(0)), woken: wake.NewOne()}
	x.path = x.of.peer.NewPath(0)
	if x.opener, err = sealed.NewOpener(suite, secret); err != nil {
		t.Fatal(err)
	}
	home := netip.MustParseAddrPort("5.5.5.1:4001")
	x.at = address{now: home, works: true}
	from := func(at string) *received {
		return &received{from: net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at))}
	}
	packet := func(payload []byte) []byte {
		b, err := seal.Seal(nil, payload)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	challenge := packet(binary.BigEndian.AppendUint64([]byte{kindChallenge}, 42))
	moved := packet(binary.BigEndian.AppendUint64([]byte{kindChallenge}, 43))
	for _, b := range [][]byte{challenge, challenge} {
		x.open(bytes.Clone(b), from("5.5.5.1:4001"))
	}
	if len(x.reply) != 1 {
		t.Errorf("%d answers to a challenge that came twice", len(x.reply))
	}
	for range 3 {
		x.open(bytes.Clone(moved), from("5.5.5.2:4001"))
	}
	if want := len(moved) + headers; x.at.came != want || x.at.try.Addr() != netip.MustParseAddr("5.5.5.2") {
		t.Errorf("%d bytes came from %v, want %d of one packet", x.at.came, x.at.try, want)
	}
	if n := x.of.peer.Refused()[flight.Repeated]; n != 3 {
		t.Errorf("%d repetitions counted, want 3", n)
	}
}
