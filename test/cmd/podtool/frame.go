package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// frames says how packets are sent in Ethernet frames of one's own.
type frames struct {
	from, to  string // MACs
	dev, vtep string // one of the two
	vni       uint64
}

// send sends a packet, several times.
func (f frames) send(packet []byte, count int) error {
	src, err1 := net.ParseMAC(f.from)
	dst, err2 := net.ParseMAC(f.to)
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	kind := uint16(unix.ETH_P_IP)
	if packet[0]>>4 == 6 {
		kind = unix.ETH_P_IPV6
	}
	frame := append(binary.BigEndian.AppendUint16(append(dst, src...), kind), packet...)
	write, closed, err := f.open()
	if err != nil {
		return err
	}
	defer closed()
	for range count {
		if err := write(frame); err != nil {
			return err
		}
	}
	return nil
}

// open returns what writes a frame.
func (f frames) open() (write func([]byte) error, closed func(), err error) {
	if f.vtep != "" {
		d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) { // as a node's root can: its own guard takes it for the device
			fault := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PRIORITY, int(f.vni)<<16) })
			return errors.Join(fault, err)
		}}
		c, err := d.Dial("udp", f.vtep)
		if err != nil {
			return nil, nil, err
		}
		head := binary.BigEndian.AppendUint64(nil, 8<<56|f.vni<<8) // RFC 7348, section 5
		return func(b []byte) error {
			_, err := c.Write(append(head[:8:8], b...))
			return err
		}, func() { _ = c.Close() }, nil
	}
	ifi, err := net.InterfaceByName(f.dev)
	if err != nil {
		return nil, nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open packet socket: %w", err)
	}
	to := &unix.SockaddrLinklayer{Ifindex: ifi.Index}
	return func(b []byte) error { return unix.Sendto(fd, b, 0, to) }, func() { _ = unix.Close(fd) }, nil
}
