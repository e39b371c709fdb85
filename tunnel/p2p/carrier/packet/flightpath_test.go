package packet

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/carrier/flight"
	"edgemesh/tunnel/p2p/carrier/sealed"
	"edgemesh/tunnel/pull"
)

// noLanes take what comes, and have nothing to send.
type noLanes struct{ Lanes }

func (noLanes) Datagram([]byte)                {}
func (noLanes) Waits() (stream, datagram bool) { return false, false }
func (noLanes) Down([]pull.Frame)              {}
func (noLanes) Up(func(), bool)                {}
func (noLanes) Flush()                         {}
func (noLanes) Close()                         {}

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

// goldenHello is an offer as other versions write it.
var goldenHello = []byte{2, 0xf0, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff,
	0, 1, 2, 3, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18}

func TestGoldenHello(t *testing.T) {
	want := flightHello{index: 0x010203, id: 0x1112131415161718}
	for i := range want.nonce {
		want.nonce[i] = 0xf0 + byte(i)
	}
	var h flightHello
	if err := h.read(bytes.NewReader(goldenHello)); err != nil || h != want || !bytes.Equal(want.bytes(), goldenHello) {
		t.Errorf("read %+v, %v; written %x", h, err, want.bytes())
	}
	for name, b := range map[string][]byte{"version 1": append([]byte{1}, goldenHello[1:]...), "half of one": goldenHello[:9],
		"an index too large": append(append(bytes.Clone(goldenHello[:17]), 0xff, 0xff, 0xff, 0xff), goldenHello[21:]...)} {
		if err := h.read(bytes.NewReader(b)); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// What members send is counted from the start, and what a flightPeer refused stays so while another one replaces it.
func TestRefusalsOfReplacedPeers(t *testing.T) {
	lanes := func(peer.ID) Lanes { return noLanes{} }
	f := flights{memory: flight.NewMemory(0), to: map[peer.ID]*flightPeer{}, ending: map[*flightPeer]bool{}, offering: map[peer.ID]bool{}}
	f.lanes.Store(&lanes)
	var paths []*flightPath
	for n := range uint64(3) {
		p := f.agreed("peer", n+1, f.to["peer"])
		x := &flightPath{Flight: &Flight{}, of: p, woken: wake.NewOne(), over: wake.NewOne()}
		if !p.join(x, 0) {
			t.Fatal("a path cannot join")
		}
		x.path.Receive(0, []byte{9}, 0, 0)
		paths = append(paths, x)
		if got := f.RefusedByFlight(); got["malformed"] != n+1 || len(got) < 8 {
			t.Errorf("%d refused by %d: %v", n+1, n+1, got)
		}
	}
	for _, x := range paths {
		if x.of.leave(x) {
			f.forget("peer", x.of)
		}
		if got := f.RefusedByFlight(); got["malformed"] != 3 {
			t.Errorf("3 refused by those that end: %v", got)
		}
	}
	if len(f.to)+len(f.ending) > 0 {
		t.Errorf("%d and %d are kept", len(f.to), len(f.ending))
	}
}

// Where the datagram lane has a direct path nothing carries beside the circuit, whichever of its paths works first or is left.
func TestSpareCircuit(t *testing.T) {
	p := newFlightPeer(1, noLanes{}, flight.NewMemory(0))
	of := &Flight{link: link{via: &via{wanted: wake.NewOne()}}, among: &flights{to: map[peer.ID]*flightPeer{"peer": p}}, conn: testConn{to: "peer"}}
	path := func() *flightPath {
		x := &flightPath{Flight: of, of: p, woken: wake.NewOne(), over: wake.NewOne()}
		if !p.join(x, 0) {
			t.Fatal("a path cannot join")
		}
		return x
	}
	works := func(x *flightPath) {
		p.mu.Lock()
		defer p.mu.Unlock()
		x.at.works = true
		p.works(x)
	}
	first, second, third := path(), path(), path()
	works(first)
	works(second)
	if p.active.Load() != second {
		t.Fatal("the newest that works does not carry")
	}
	<-second.woken
	of.Spare(true)
	if len(second.woken) == 0 {
		t.Error("the path that carries is not told")
	}
	p.leave(second)
	works(third)
	if p.active.Load() != nil {
		t.Error("a path carries beside the circuit")
	}
	of.Spare(false)
	works(third)
	if p.active.Load() != third {
		t.Error("nothing carries, and there is no direct path any longer")
	}
}

// What arrives on a path keeps the circuit wanted, and wakes who waits for that.
func TestUsedCircuitIsWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := testFlight(testService(), "peer", &testPath{})
		f.via = &via{wanted: wake.NewOne()}
		x, _ := newTestPath(f, 1, noLanes{})
		awaited := make(chan bool, 1)
		go func() { awaited <- f.via.await(t.Context()) }()
		synctest.Wait()
		x.bytes = 100
		x.flush()
		synctest.Wait()
		if len(awaited) == 0 {
			t.Error("the offer still waits")
		}
	})
}
