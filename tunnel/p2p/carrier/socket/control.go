package socket

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Control returns a function for net.Dialer and net.ListenConfig that applies the options of an underlay socket before it
// is bound: SO_MARK, so that the host's policy routing never sends it into the tunnel; for TCP also BBR where the kernel
// has it (a lossy path does not collapse), and the port shared with the listener, which hole punching needs.
func Control(mark uint32, reuse bool) func(network, address string, c syscall.RawConn) error {
	return func(network, _ string, c syscall.RawConn) error {
		var err error
		cerr := c.Control(func(fd uintptr) { err = setOptions(int(fd), network, mark, reuse) })
		if cerr != nil {
			return cerr
		}
		return err
	}
}

// ListenControl is Control for listening sockets. A handshake that a NAT lets in but not out again would hold its pair of
// addresses for 63 s (five repeated SYN-ACKs), and punching between them would fail meanwhile. With one repetition it is
// 3 s; a later SYN starts a new handshake.
func ListenControl(mark uint32) func(network, address string, c syscall.RawConn) error {
	set := Control(mark, true)
	return func(network, address string, c syscall.RawConn) error {
		var err error
		// For a listener TCP_SYNCNT counts SYN-ACKs (net/ipv4/inet_connection_sock.c).
		cerr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_SYNCNT, 1) })
		if err := errors.Join(cerr, err); err != nil {
			return fmt.Errorf("set TCP_SYNCNT: %w", err)
		}
		return set(network, address, c)
	}
}

func setOptions(fd int, network string, mark uint32, reuse bool) error {
	if mark != 0 {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(mark)); err != nil {
			return fmt.Errorf("set SO_MARK: %w", err)
		}
	}
	switch network {
	case "tcp", "tcp4", "tcp6":
	default:
		TuneUDP(fd)
		return nil
	}
	if reuse {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return fmt.Errorf("set SO_REUSEADDR: %w", err)
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
			return fmt.Errorf("set SO_REUSEPORT: %w", err)
		}
	}
	TuneTCP(fd)
	holdRepairs(fd)
	return nil
}
