package watchdog

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// waiting are calls that wait for a disk, for a network file system, for a lock of another program or for a child: a
// restarted process would wait there again. read and write are not among them: in those a thread waits for packets, too; for a
// disk it waits uninterruptibly.
var waiting = []int{ //nolint:gochecknoglobals // a constant
	unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNCFS, unix.SYS_FTRUNCATE, unix.SYS_OPENAT, unix.SYS_UNLINKAT, unix.SYS_MKDIRAT,
	unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_STATX, unix.SYS_GETDENTS64, unix.SYS_FLOCK, unix.SYS_WAIT4, unix.SYS_WAITID,
}

// inCalls reports whether a thread of this process waits in such a call, or uninterruptibly (D, in proc_pid_stat(5)).
func inCalls() bool {
	tasks, _ := filepath.Glob("/proc/self/task/*") // the pattern is good
	return slices.ContainsFunc(tasks, func(task string) bool {
		stat, err := os.ReadFile(filepath.Join(task, "stat"))
		if err != nil {
			return false // the thread has ended
		}
		if i := bytes.LastIndexByte(stat, ')'); i >= 0 && len(stat) > i+2 && stat[i+2] == 'D' {
			return true
		}
		call, err := os.ReadFile(filepath.Join(task, "syscall")) // "NUMBER ARGUMENTS", or "running"
		if err != nil {
			return false // not every kernel has it
		}
		number, _, _ := bytes.Cut(call, []byte(" "))
		n, err := strconv.Atoi(string(number))
		return err == nil && slices.Contains(waiting, n)
	})
}
