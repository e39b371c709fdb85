package ipam

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// earlierBoot marks a record from an unknown boot before the running one.
const earlierBoot = "earlier"

// bootID identifies the running boot; it is empty if the kernel does not provide it.
func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// firstMoment is no later than any time that the clock has shown during the running boot:
// what was written before it is from an earlier boot. The zero time means unknown.
//
// Subtracting the uptime from now is not enough. Without a battery the clock is set late,
// and pods that started before that have earlier times. The kernel created its own device
// files with the clock as it was then.
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
