// Package processors says on how many processors agents and relays run Go code.
package processors

import (
	"os"
	"runtime"
)

// few is below how many one only is used. What a packet passes through on its way are
// goroutines that take turns; on few processors that also carry pods and interrupts,
// waking another one for each turn costs more than it gives (tunnel/DESIGN.md,
// "Processors").
const few = 4

// wanted is on how many to run Go code: those it may use, all or one. given is what
// $GOMAXPROCS says, which is obeyed.
func wanted(usable int, given string) int {
	if given != "" || usable >= few {
		return usable
	}
	return 1
}

// Limit comes after everything that counts processors. Where it limits, Go's runtime no longer
// follows the process's cgroup. The only change of a limit that would matter then is one from
// below few to few or more while the process runs, and that takes effect with the next start; where
// there are few or more the runtime goes on following.
func Limit() {
	usable := runtime.GOMAXPROCS(0)
	if n := wanted(usable, os.Getenv("GOMAXPROCS")); n != usable {
		runtime.GOMAXPROCS(n)
	}
}
