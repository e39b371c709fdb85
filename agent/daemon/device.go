package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"

	"edgemesh/agent/control"
	"edgemesh/tunnel/p2p/carrier/socket"
	"edgemesh/tunnel/tun"
	"edgemesh/tunnel/virtio"
)

// lastingTUN is a TUN that is recreated when another program deletes it. The repair
// restores its addresses and routes.
type lastingTUN struct {
	cfg tun.Config
	log *slog.Logger

	mu     sync.RWMutex // a leaf: nothing else is locked while it is held
	dev    tun.Device
	index  int // of the interface that dev is attached to
	closed bool

	paused bool
	gone   chan struct{} // closed with the device
}

var _ tun.Device = (*lastingTUN)(nil)

// openTUN opens the TUN. Errors are tun.Open's.
func openTUN(cfg tun.Config) (*lastingTUN, error) {
	l := &lastingTUN{cfg: cfg, log: cfg.Log, gone: make(chan struct{})}
	if err := l.open(); err != nil {
		return nil, err
	}
	l.cfg.Held = 0
	return l, nil
}

func (l *lastingTUN) open() error {
	dev, err := tun.Open(l.cfg)
	if err != nil {
		return err
	}
	i, err := net.InterfaceByName(l.cfg.Name)
	if err != nil {
		_ = dev.Close()
		return fmt.Errorf("open tun %s: %w", l.cfg.Name, err)
	}
	l.dev, l.index = dev, i.Index
	return nil
}

// Read is the device's. When the interface is gone it opens another one first,
// and fails with tun.Open's error if it cannot.
func (l *lastingTUN) Read(buf []byte) (int, error) {
	for {
		dev := l.device()
		n, err := dev.Read(buf)
		if err == nil || errors.Is(err, os.ErrClosed) {
			return n, err
		}
		if l.isPaused() {
			<-l.gone
			return 0, os.ErrClosed
		}
		again, openErr := l.reopen()
		switch {
		case openErr != nil:
			return 0, fmt.Errorf("recreate the deleted TUN: %w", openErr)
		case !again:
			return n, err
		}
	}
}

// reopen replaces a device whose interface is gone; false means that it is
// still there.
func (l *lastingTUN) reopen() (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false, os.ErrClosed
	}
	if i, err := net.InterfaceByName(l.cfg.Name); err == nil && i.Index == l.index {
		return false, nil
	}
	_ = l.dev.Close() // its interface is gone; a second Close is harmless
	if err := l.open(); err != nil {
		return false, err
	}
	l.log.Warn("another program deleted the TUN; recreated it", "name", l.cfg.Name)
	return true, nil
}

func (l *lastingTUN) device() tun.Device {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.dev
}

func (l *lastingTUN) Write(buf []byte) error { return l.device().Write(buf) }

// toKernel is Write for a packet without a header.
func (l *lastingTUN) toKernel(packet []byte) error {
	return l.Write(append(make([]byte, virtio.HeaderLen), packet...))
}

// Pause leaves what comes in the queue, for the agent that takes over: Read waits for Close, Write works.
func (l *lastingTUN) Pause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paused = true
	return l.dev.Pause()
}

func (l *lastingTUN) isPaused() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.paused
}

// Share is the device's.
func (l *lastingTUN) Share() (int, error) { return l.device().Share() }

func (l *lastingTUN) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		close(l.gone)
	}
	l.closed = true
	return l.dev.Close()
}

func (l *lastingTUN) Name() string           { return l.device().Name() }
func (l *lastingTUN) Kind() string           { return l.device().Kind() }
func (l *lastingTUN) Offloads() tun.Offloads { return l.device().Offloads() }
func (l *lastingTUN) UDPSegments() bool      { return l.device().UDPSegments() }
func (l *lastingTUN) Pending() bool          { return l.device().Pending() }

// allOffloads are those of a kernel since 6.2.
const allOffloads = tun.Checksum | tun.TSO4 | tun.TSO6 | tun.TSOECN | tun.USO4 | tun.USO6

// degradations lists what this host does not provide: for connections, and for the device.
func degradations(dev tun.Device, of []socket.Fallback) []control.Fallback {
	var out []control.Fallback
	for _, f := range of {
		out = append(out, control.Fallback(f))
	}
	switch have := dev.Offloads(); {
	case dev.Kind() == "portable":
		out = append(out, control.Fallback{What: "offloads",
			Effect: "the TUN carries single packets: several times the CPU for the same throughput",
			Remedy: "use a kernel whose TUN has IFF_VNET_HDR"})
	case have&allOffloads != allOffloads:
		out = append(out, control.Fallback{What: "offloads",
			Effect: "the TUN's offloads are " + have.String() + ": the rest is done in software",
			Remedy: "use Linux 6.2 or later for UDP super-segments (uso4, uso6)"})
	}
	return out
}

// reportDegraded logs what this host does not provide.
func reportDegraded(log *slog.Logger, all []control.Fallback) {
	for _, f := range all {
		log.Warn("running degraded: "+f.What, "effect", f.Effect, "remedy", f.Remedy)
	}
}
