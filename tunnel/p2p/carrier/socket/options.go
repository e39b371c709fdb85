package socket

import "golang.org/x/sys/unix"

// congestions are the congestion controls of TCP connections, the preferred one first.
var congestions = []string{bbr, "cubic"} //nolint:gochecknoglobals // a constant

const (
	// bbr is the congestion control that bears losses.
	bbr = "bbr"
	// TCP_NOTSENT_LOWAT, in bytes, is how much unsent data the kernel takes before it reports the socket as full. Data in
	// front of the socket can still change its path; data in the socket cannot. It follows the path (tune.go), between
	// minNotSent and maxNotSent.
	minNotSent   = 8 << 10
	startNotSent = 16 << 10
	maxNotSent   = 256 << 10
	// sendBuffer, in bytes, is for what was sent behind a lost segment until that has arrived: two round trips of the line, or
	// three where it is lost again. The kernel doubles it for its overhead. Its own end, 4 MiB with overhead
	// (net.ipv4.tcp_wmem), holds two of 200 Mbit/s and 50 ms.
	sendBuffer = 8 << 20
)

// TuneTCP gives a TCP socket BBR where the kernel has it, so that a lossy path does not collapse, and a short unsent
// queue. Both are improvements: without them connections work, and Fallbacks reports it.
func TuneTCP(fd int) {
	_ = setCongestion(fd, congestions)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, startNotSent)
}

// holdRepairs gives a TCP socket with BBR a buffer of sendBuffer, from which on the kernel no longer sizes it. Cubic would fill
// routers' queues with it; a relay, which serves strangers, has the kernel's. It takes CAP_NET_ADMIN, and is an improvement, too.
func holdRepairs(fd int) {
	if name, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION); err == nil && name == bbr {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer)
	}
}

// TuneUDP gives a UDP socket buffers that hold what arrives while the process does not run, or as much of them as the
// system grants.
func TuneUDP(fd int) { _, _ = enlarge(fd, UDPBuffer, true) }

// setCongestion sets the first congestion control that the kernel has and permits. The error is that of the first one,
// also when another was set.
func setCongestion(fd int, names []string) (first error) {
	for _, name := range names {
		err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
		if err == nil {
			return first
		}
		if first == nil {
			first = err
		}
	}
	return first
}
