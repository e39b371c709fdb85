package daemon

import (
	"time"

	"edgemesh/agent/findings"
	"edgemesh/internal/watchdog"
)

// hungLoops are the loops of this agent that hang, and those for which it restarted itself within the last hour.
func hungLoops(dog *watchdog.Watchdog) (out []findings.Finding) {
	seen := map[string]bool{}
	add := func(loop string, since time.Time, f findings.Finding) {
		if seen[loop] {
			return
		}
		seen[loop] = true
		f = f.About(loop)
		f.Since = &since
		out = append(out, f)
	}
	for _, h := range dog.Hung() {
		if h.Waits {
			add(h.Name, h.Since, findings.Brokenf("hung-loop", "look for a disk, a network file system or a child of the agent that does not answer: the agent does not restart itself for it",
				"%s has had work and made no progress since %s, while the agent waits for the kernel", h.Name, h.Since.Format(time.TimeOnly)))
		}
		add(h.Name, h.Since, findings.Brokenf("hung-loop", "report the stacks in the agent's log; it restarts itself, three times an hour at most",
			"%s has had work and made no progress since %s", h.Name, h.Since.Format(time.TimeOnly)))
	}
	for _, r := range dog.Restarts() {
		for _, loop := range r.Loops {
			add(loop, r.At, findings.Notef("hung-loop", "the agent restarted itself at %s: %s had work and made no progress for %v; the stacks are in its log of that time",
				r.At.Format(time.TimeOnly), loop, watchdog.Patience))
		}
	}
	return out
}
