package p2p

import (
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/tunnel/p2p/ladder"
)

// sinceBoot is the time since the host was started, the time it slept included
// (CLOCK_BOOTTIME). Nobody can set it: whether a path is alive does not depend on what
// an operator or NTP makes of the date.
func sinceBoot() ladder.Time {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // fails on no Linux since 2.6.39
	return time.Duration(ts.Nano())
}
