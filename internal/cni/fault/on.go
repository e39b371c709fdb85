//go:build faultpoints

package fault

import (
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
)

// passed counts the points this process went through.
var passed atomic.Int64

// Point kills the process with SIGKILL when it is the EDGEMESH_FAULT-th one
// passed, counted from 1. With EDGEMESH_FAULT_LOG set, it appends its name to
// that file, so that a test learns how many there are.
func Point(name string) {
	n := passed.Add(1)
	if path := os.Getenv("EDGEMESH_FAULT_LOG"); path != "" {
		if f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
			fmt.Fprintf(f, "%d %s\n", n, name)
			f.Close()
		}
	}
	if want, err := strconv.ParseInt(os.Getenv("EDGEMESH_FAULT"), 10, 64); err == nil && want == n {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}
