package rawio

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Message is struct mmsghdr of recvmmsg(2).
type Message struct {
	Header unix.Msghdr
	Len    uint32 // bytes received
}

// message is one sendmsg(2) or recvmmsg(2), reused as op is.
type message struct {
	hdr   unix.Msghdr
	iov   unix.Iovec
	name  unix.RawSockaddrInet6 // or RawSockaddrInet4 at its beginning
	into  []Message
	n     int
	errno unix.Errno
	call  func(fd uintptr) bool
}

func newMessage() any {
	m := &message{}
	m.call = m.once
	return m
}

// once makes the call; false means that the descriptor is not ready.
func (m *message) once(fd uintptr) bool {
	for {
		var n uintptr
		if len(m.into) > 0 {
			n, _, m.errno = unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&m.into[0])), uintptr(len(m.into)), unix.MSG_DONTWAIT, 0, 0)
		} else {
			n, _, m.errno = unix.RawSyscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&m.hdr)), unix.MSG_DONTWAIT)
		}
		switch m.errno {
		case 0:
			m.n = int(n)
			return true
		case unix.EINTR:
		default:
			return m.errno != unix.EAGAIN
		}
	}
}

// Receive is one recvmmsg(2) of a socket; it returns how many messages it filled.
func (f *Conn) Receive(into []Message) (n int, err error) {
	m := f.messages.Get().(*message)
	defer f.messages.Put(m)
	m.into, m.n = into, 0
	err = f.raw.Read(m.call)
	m.into = nil
	return m.n, m.failed("read", "recvmmsg", err)
}

// Send is one sendmsg(2) of b, which is not empty, with control messages, to an address without a zone. On a socket of IPv6 (v6)
// addresses of IPv4 are mapped ones. Errors wrap what those of net.UDPConn's WriteMsgUDP do.
func (f *Conn) Send(b, oob []byte, to netip.AddrPort, v6 bool) (n int, err error) {
	m := f.messages.Get().(*message)
	defer f.messages.Put(m)
	m.n, m.iov.Base = 0, &b[0]
	m.iov.SetLen(len(b))
	m.hdr = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&m.name)), Namelen: unix.SizeofSockaddrInet6, Iov: &m.iov}
	m.hdr.SetIovlen(1)
	if len(oob) > 0 {
		m.hdr.Control = &oob[0]
		m.hdr.SetControllen(len(oob))
	}
	m.name = unix.RawSockaddrInet6{Family: unix.AF_INET6, Addr: to.Addr().As16()}
	port := &m.name.Port
	if !v6 {
		name := (*unix.RawSockaddrInet4)(unsafe.Pointer(&m.name))
		*name = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: to.Addr().Unmap().As4()}
		port, m.hdr.Namelen = &name.Port, unix.SizeofSockaddrInet4
	}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(port))[:], to.Port())
	err = f.raw.Write(m.call)
	m.iov.Base, m.hdr.Control = nil, nil
	return m.n, m.failed("write", "sendmsg", err)
}

// failed is what package net makes of an error.
func (m *message) failed(op, call string, err error) error {
	if err == nil && m.errno != 0 {
		err = &net.OpError{Op: op, Net: "udp", Err: os.NewSyscallError(call, m.errno)}
	}
	return err
}
