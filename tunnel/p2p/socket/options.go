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
)

// TuneTCP gives a TCP socket BBR where the kernel has it, so that a lossy path does not collapse, and a short unsent
// queue. Both are improvements: without them connections work, and Fallbacks reports it.
func TuneTCP(fd int) {
	_ = setCongestion(fd, congestions)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, startNotSent)
}

// TuneUDP gives a UDP socket buffers that hold what arrives while the process does not run, or as much of them as the
// system grants.
func TuneUDP(fd int) { _, _ = enlarge(fd, udpBuffer, true) }

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
