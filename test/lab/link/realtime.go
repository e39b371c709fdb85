package link

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// RealTime makes the whole process real-time, so that a link does not slow down
// when the machine is busy. Niceness would not do, it does not count between
// sessions, see sched(7) on autogroups. All threads have to be: one that carries
// frames waits for locks of Go's scheduler that others hold. The kernel leaves 5 %
// of the machine to the rest, whatever we do.
//
// Without it, or when it is not permitted, DirectionStats.Late shows the cost.
func RealTime() error {
	// A thread that comes back from the kernel needs a processor of the runtime.
	runtime.GOMAXPROCS(max(8, runtime.NumCPU()))
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("real time: %w", err)
	}
	// Threads inherit it; of those made meanwhile one may miss it.
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}
	var errs []error
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err == nil {
			err = unix.SchedSetAttr(tid, &attr, 0)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("real time: thread %s: %w", t.Name(), err))
		}
	}
	return errors.Join(errs...)
}
