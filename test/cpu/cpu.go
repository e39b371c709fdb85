// Package cpu says how long processors have worked: for a process, and in all.
package cpu

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Process is the processor time of a process's threads, those that have ended aside: the first field of /proc/PID/task/TID/schedstat.
// It fails if there are none.
func Process(pid int) (d time.Duration, err error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(threads) == 0 {
		return 0, fmt.Errorf("no threads of %d (%v)", pid, err) //nolint:errorlint // may be nil
	}
	for _, path := range threads {
		var ns int64
		b, err := os.ReadFile(path)
		if err == nil {
			_, err = fmt.Sscan(string(b), &ns)
		}
		if err == nil { // else it has ended
			d += time.Duration(ns)
		}
	}
	return d, nil
}

// Machine is what all processors did since the boot, in ticks.
type Machine struct{ Busy, All int64 }

// Ticks are those of /proc/stat in a second (USER_HZ, proc_stat(5)).
const Ticks = 100

// Now reads it; zero where /proc/stat cannot be read.
func Now() (m Machine) {
	b, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(b), "\n")
	for i, f := range strings.Fields(line) {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil || i > 8 { // its name; guests' time, which is in user's
			continue
		}
		if m.All += n; i != 4 && i != 5 { // idle, iowait
			m.Busy += n
		}
	}
	return m
}

// Since is what was added after before.
func (m Machine) Since(before Machine) Machine {
	return Machine{m.Busy - before.Busy, m.All - before.All}
}

// Share is that of the time in which they were busy.
func (m Machine) Share() float64 { return float64(m.Busy) / float64(max(m.All, 1)) }
