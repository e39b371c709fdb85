package main

import (
	"syscall"

	"github.com/libp2p/go-libp2p/core/network"
	"golang.org/x/sys/unix"
)

// notSentLowat is TCP_NOTSENT_LOWAT in bytes: what waits unsent in the kernel
// delays every other circuit on the same connection.
const notSentLowat = 128 << 10

// tuneTCP sets what helps a relay on an accepted TCP socket: BBR, which a lossy
// path does not collapse, and a short unsent queue. Both are improvements, not
// needs: a kernel without them still works.
func tuneTCP(c network.ConnMultiaddrs) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return // QUIC
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "bbr")
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentLowat)
	})
}
