package ipam

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// earlierBoot marks a record of an unknown boot before the running one.
const earlierBoot = "earlier"

// bootID identifies the running boot; empty where the kernel does not tell.
func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// firstMoment is a time no later than what the clock showed at any moment of
// the running boot: what was written before is of an earlier boot. The zero
// time means that nothing can be told.
//
// Now less the time since the boot is not enough. Where no battery keeps the
// clock it is set late, and pods that started before have earlier times. The
// kernel's own device files were made with the clock as it was then.
func firstMoment() time.Time {
	var up unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return time.Time{}
	}
	info, err := os.Stat("/dev/null")
	if err != nil {
		return time.Time{}
	}
	first := time.Now().Add(-time.Duration(up.Nano()))
	if made := info.ModTime(); made.Before(first) {
		first = made
	}
	return first.UTC()
}
