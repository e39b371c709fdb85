package identity

import (
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
)

// A part of the memory is not more than the whole, and never too little.
func TestMemoryPart(t *testing.T) {
	if whole, part := MemoryPart(1), MemoryPart(4); whole < minMemory || part < minMemory || part > whole {
		t.Errorf("the memory is %d bytes, a quarter of it %d", whole, part)
	}
}

// On a host with little memory one stream can still fill its window without being reset for it.
func TestWindowFits(t *testing.T) {
	for _, memory := range []int{0, minMemory, 1 << 30} {
		l := Limits{Memory: memory}.withDefaults()
		if l.PeerMemory*3/4 < streamWindow || l.PeerMemory > l.Memory {
			t.Errorf("with %d MiB one peer may hold %d MiB", l.Memory>>20, l.PeerMemory>>20)
		}
	}
}

// In a small control group the windows of a few peers leave most of it for everything else.
func TestWindow(t *testing.T) {
	for group, want := range map[int64]uint32{
		0: streamWindow, 1 << 40: streamWindow, 1 << 30: streamWindow, 256 << 20: 4 << 20, 64 << 20: 1 << 20, 1 << 20: leastWindow,
	} {
		if got := window(group); got != want {
			t.Errorf("of %d bytes: %d, want %d", group, got, want)
		}
	}
}

// Members together, and each of them, have so much memory and so many connections; a peer that holds little is served
// when those that hold much are not.
func TestMemoryBounds(t *testing.T) {
	rm, err := ResourceManager(Limits{Members: 2, Handshakes: 1, Memory: 100 << 20, PeerMemory: 60 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer rm.Close()
	open := func(name string) (network.ConnManagementScope, error) {
		c, err := rm.OpenConnection(network.DirInbound, false, ma.StringCast("/ip4/5.5.5.5/tcp/1"))
		if err == nil {
			err = c.SetPeer(peer.ID(name))
		}
		return c, err
	}
	a, err := open("a")
	if err != nil {
		t.Fatal(err)
	}
	b, err := open("b")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		of       network.ConnManagementScope
		mib      int
		priority uint8
		ok       bool
	}{
		{a, 61, network.ReservationPriorityAlways, false}, // more than one may
		{a, 44, 191, true},
		{a, 4, 191, false}, // what is left of its own is for urgent things
		{b, 44, 191, false},
		{b, 30, 191, true},
		{b, 10, 191, false}, // the rest is for those who hold little
		{b, 10, network.ReservationPriorityAlways, true},
	} {
		if err := x.of.PeerScope().(network.ResourceScope).ReserveMemory(x.mib<<20, x.priority); (err == nil) != x.ok {
			t.Errorf("%d MiB at priority %d: %v, want success %t", x.mib, x.priority, err, x.ok)
		}
	}
	opened := 2
	for ; opened < 20; opened++ {
		if _, err := open("b"); err != nil {
			break
		}
	}
	if want := 2*memberConns + 1; opened != want {
		t.Errorf("%d connections for two members, want %d", opened, want)
	}
}
