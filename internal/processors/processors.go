// Package processors limits how many processors agents and relays use for Go code.
package processors

import (
	"os"
	"runtime"
	"sync/atomic"
)

// few is the number of processors below which only one is used. A packet passes through
// several goroutines in turn. On few processors, which also run pods and interrupts,
// waking another processor for each turn costs more than it gains (tunnel/DESIGN.md).
const few = 4

// wanted is how many of the usable processors to use: all or one. given is $GOMAXPROCS,
// which takes precedence.
func wanted(usable int, given string) int {
	if given != "" || usable >= few {
		return usable
	}
	return 1
}

// unlimited is the number of usable processors that the last Limit found; 0 before it.
var unlimited atomic.Int64

// Usable returns how many processors this process could use without Limit.
func Usable() int { return max(runtime.GOMAXPROCS(0), int(unlimited.Load())) }

// Limit applies the limit; what counts processors from then on calls Usable. A runtime
// that was limited no longer follows the process's cgroup. That matters only if the
// cgroup's limit rises to few or more while the process runs, and takes effect at the
// next start. With few or more processors nothing changes and the runtime keeps following.
func Limit() {
	usable := Usable()
	unlimited.Store(int64(usable))
	if n := wanted(usable, os.Getenv("GOMAXPROCS")); n != usable {
		runtime.GOMAXPROCS(n)
	}
}
