package portguess

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// hearRefusals has c's reads and writes fail with what routers answer (ip(7), IP_RECVERR): a carrier that gives a
// subscriber no more ports says so by ICMP (RFC 6888, REQ-4), and the kernel reports it to an unconnected socket only on request.
// That it cannot be had is no harm.
func hearRefusals(c *net.UDPConn, on bool) {
	v := 0
	if on {
		v = 1
	}
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVERR, v) })
	}
}

// refusal reports whether err says that this host or a router let a packet not pass. A socket that was closed says nothing.
func refusal(err error) bool {
	for _, e := range [...]error{
		unix.EPERM, unix.EACCES, unix.ENOBUFS, unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EMFILE, unix.ENFILE,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
