package socket

import (
	"fmt"

	"golang.org/x/sys/unix"

	"edgemesh/internal/processors"
)

// Fallback is something that the system does not provide, and what is done instead.
type Fallback struct {
	What   string // one word
	Effect string // what is done instead, and what it costs
	Remedy string
}

// UDPBuffer is what quic-go wants of a UDP socket in each direction, bytes: it has to hold what arrives while this process
// does not run.
const UDPBuffer = 7 << 20

// system is what Fallbacks checks; tests replace parts of it.
type system struct {
	congestion []string // in the order of preference
	udpBuffer  int
	force      bool // beyond net.core.rmem_max and wmem_max, which needs CAP_NET_ADMIN
	cpus       int
}

// Fallbacks returns what this system does not provide for connections. Agent and relay work without it.
func Fallbacks() []Fallback {
	return system{congestions, UDPBuffer, true, processors.Usable()}.fallbacks()
}

func (s system) fallbacks() []Fallback {
	var out []Fallback
	if f := s.checkCongestion(); f != nil {
		out = append(out, *f)
	}
	if f := s.checkBuffers(); f != nil {
		out = append(out, *f)
	}
	if s.cpus == 1 {
		out = append(out, Fallback{What: "cpus", Effect: "only one CPU: encryption and the system calls for packets take turns",
			Remedy: "give it a second CPU where more throughput is needed"})
	}
	return out
}

// probe calls f with a new socket.
func probe(kind int, f func(fd int) error) error {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	return f(fd)
}

func (s system) checkCongestion() *Fallback {
	var got string
	var why error
	err := probe(unix.SOCK_STREAM, func(fd int) (err error) {
		why = setCongestion(fd, s.congestion)
		got, err = unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		return err
	})
	if err != nil {
		why = err
	}
	if why == nil || got == s.congestion[0] { // the system's default is as good
		return nil
	}
	return &Fallback{What: s.congestion[0],
		// docs/measurements/throughput.md
		Effect: fmt.Sprintf("TCP connections use %q (%s: %v): slow on paths that lose packets, where TCP carries; with 1 %% loss, 100 Mbit/s at 50 ms carry 3 Mbit/s instead of 94", got, s.congestion[0], why),
		Remedy: "modprobe tcp_bbr, and allow it in net.ipv4.tcp_allowed_congestion_control"}
}

func (s system) checkBuffers() *Fallback {
	least := s.udpBuffer
	err := probe(unix.SOCK_DGRAM, func(fd int) error {
		got, err := enlarge(fd, s.udpBuffer, s.force)
		least = got
		return err
	})
	if err == nil && least >= s.udpBuffer {
		return nil
	}
	effect := fmt.Sprintf("UDP sockets get buffers of %d of %d bytes: bursts are lost, QUIC is slower", least, s.udpBuffer)
	if err != nil {
		effect += ": " + err.Error()
	}
	return &Fallback{What: "udp-buffers", Effect: effect,
		Remedy: fmt.Sprintf("sysctl -w net.core.rmem_max=%d net.core.wmem_max=%d", s.udpBuffer, s.udpBuffer)}
}

// enlarge gives a UDP socket buffers of want bytes, or as much as the system grants, and returns the size of the smaller
// one. With force it may exceed the system's limit, where that is permitted.
func enlarge(fd, want int, force bool) (int, error) {
	least := want
	for _, o := range [...]struct{ plain, force int }{
		{unix.SO_RCVBUF, unix.SO_RCVBUFFORCE}, {unix.SO_SNDBUF, unix.SO_SNDBUFFORCE},
	} {
		if !force || unix.SetsockoptInt(fd, unix.SOL_SOCKET, o.force, want) != nil {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o.plain, want); err != nil {
				return 0, fmt.Errorf("set the size of a UDP buffer: %w", err)
			}
		}
		got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, o.plain)
		if err != nil {
			return 0, fmt.Errorf("read the size of a UDP buffer: %w", err)
		}
		least = min(least, got/2) // the kernel counts its own overhead, and reports the double (socket(7))
	}
	return least, nil
}
