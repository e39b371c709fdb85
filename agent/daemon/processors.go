package daemon

import (
	"os"
	"runtime"
)

// fewProcessors is below how many the agent uses one only. What a packet passes through
// on its way are goroutines that take turns; on few processors that also carry pods
// and interrupts, waking another one for each turn costs more than it gives
// (tunnel/DESIGN.md, "Processors").
const fewProcessors = 4

// processors is on how many the agent is to run Go code: those it may use, all or one.
// given is what $GOMAXPROCS says, which is obeyed, and queues how many queues of the
// TUN the configuration demands.
func processors(usable int, given string, queues int) int {
	if given != "" || queues > 1 || usable >= fewProcessors {
		return usable
	}
	return 1
}

// limitProcessors comes after everything that counts processors.
func limitProcessors(queues int) {
	usable := runtime.GOMAXPROCS(0)
	if n := processors(usable, os.Getenv("GOMAXPROCS"), queues); n != usable {
		runtime.GOMAXPROCS(n)
	}
}
