package tunnel_test

import (
	"strings"
	"testing"

	"edgemesh/internal/watchdog"
	"edgemesh/test/fair"
	"edgemesh/tunnel"
	"edgemesh/tunnel/tunneltest"
)

// watch is where the loop stands whose name begins like that, if it has work.
func (n *node) watch(name string) (found watchdog.Work, busy bool) {
	n.Watch(func(w watchdog.Work) {
		if strings.HasPrefix(w.Name, name) {
			found, busy = w, true
		}
	})
	return found, busy
}

func (n *node) busy(name string) bool {
	_, busy := n.watch(name)
	return busy
}

// A carrier that takes nothing makes its writer stand still. Freed, it moves to another path.
func TestWatchFreesAWriter(t *testing.T) {
	net, a, b, path := pair(t, tunnel.Limits{})
	packet := tunneltest.TCPPacket(addrA, addrB, make([]byte, 1400))
	a.dev.Inject(packet)
	b.packets(t, 1)
	const name = "writer of the stream lane to b"
	fair.Eventually(t, patience, "the writer has nothing to do", fair.True(func() bool { return !a.busy(name) }))

	path.Stall()
	for range 100 {
		a.dev.Inject(packet)
	}
	var stands watchdog.Work
	fair.Eventually(t, patience, "the writer stands still", fair.True(func() bool {
		before, busy := stands, false
		stands, busy = a.watch(name)
		return busy && stands.Steps == before.Steps
	}))
	net.SetPath(nodeA, nodeB, tunneltest.NewPath(64<<10))
	stands.Free()
	fair.Eventually(t, patience, "the writer makes progress", fair.True(func() bool { now, busy := a.watch(name); return !busy || now.Steps != stands.Steps }))
	a.dev.Inject(packet)
	b.packets(t, 2)
	stands.Free() // too late: it frees nobody any longer
}

// slowReader is a device whose Read returns once it is let.
type slowReader struct {
	*tunneltest.Device
	let chan struct{}
}

func (s slowReader) Read(b []byte) (int, error) {
	n, err := s.Device.Read(b)
	<-s.let
	return n, err
}

// A reader that hangs has work from the next packet on.
func TestWatchSeesTheReader(t *testing.T) {
	net := tunneltest.NewNet()
	t.Cleanup(net.Wait)
	dev := slowReader{tunneltest.NewDevice(func([]byte) error { return nil }), make(chan struct{})}
	n := &node{Tunnel: tunnel.New(tunnel.Config{Device: dev, Underlay: net.Underlay(nodeA)})}
	ended := make(chan error, 1)
	go func() { ended <- n.Run(t.Context()) }()
	if n.busy("TUN reader") {
		t.Error("there is nothing to read")
	}
	packet := tunneltest.UDPPacket(addrA, addrB, nil)
	dev.Inject(packet)
	injected := make(chan bool, 1)
	go func() { injected <- dev.Inject(packet) }()
	fair.Eventually(t, patience, "a packet waits", fair.True(func() bool { return n.busy("TUN reader") }))
	if w, _ := n.watch("TUN reader"); w.Steps != 0 {
		t.Errorf("%+v: it has returned nothing", w)
	}
	close(dev.let)
	<-injected
	fair.Eventually(t, patience, "both are read", fair.True(func() bool { return !n.busy("TUN reader") }))
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	<-ended
}
