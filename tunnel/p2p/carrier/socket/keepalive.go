package socket

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// MemberSilence is how long nothing may arrive from a member, its own keep-alives included, until its relay's kernel probes
	// whether it is there. A member sends one every relays.MostSilence and 9 s at least, so that a living one is not probed.
	MemberSilence = 130 * time.Second
	// A probe that is not answered is repeated after keepAliveAgain seconds, keepAliveTries in all. Then the connection ends.
	keepAliveAgain, keepAliveTries = 3, 3
)

// KeepAlive ends the connection when its other end is gone: after a silence the kernel probes it, and what it does not acknowledge
// counts as well.
func (b *Conn) KeepAlive(silence time.Duration) {
	KeepAlive(b.Conn, silence)
	b.unacked.want(b.tuner.raw, func() { _ = b.Close() })
}

// Supervise is KeepAlive for a connection whose other end keeps it alive: it is probed only if nothing has arrived for MemberSilence.
// What arrived is seen by the kernel's count of segments. A keep-alive, which is outside the window, leaves no other trace.
func (b *Conn) Supervise() {
	b.unacked.probe = func(after time.Duration) { KeepAlive(b.Conn, after) }
	KeepAlive(b.Conn, 0)
	b.unacked.want(b.tuner.raw, func() { _ = b.Close() })
}

// KeepAlive has the kernel probe the other end of a TCP connection after a silence (tcp(7), TCP_KEEPIDLE); 0: never. A probe and its
// answer are 52 bytes each. Where c has no socket nothing happens.
func KeepAlive(c any, silence time.Duration) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Control(func(fd uintptr) {
		set := func(level, opt, v int) { _ = unix.SetsockoptInt(int(fd), level, opt, v) }
		if silence <= 0 {
			set(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0)
			return
		}
		set(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1) // before TCP_KEEPIDLE: the kernel then counts the silence that has passed already
		set(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, keepAliveAgain)
		set(unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAliveTries)
		set(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, max(1, int(silence.Round(time.Second).Seconds())))
	})
}
