package daemon

import (
	"time"

	"edgemesh/agent/findings"
	"edgemesh/internal/watchdog"
)

// hungLoops are the loops of this agent that hang, and those for which it restarted itself within the last hour.
func hungLoops(dog *watchdog.Watchdog) (out []findings.Finding) {
	ends, spared := dog.Ends()
	remedy := "report the stacks in the agent's log; it restarts itself now"
	if spared {
		remedy = "report the stacks in the agent's log, and restart it: it does so itself three times an hour at most"
	}
	hangs := map[string]bool{}
	for _, h := range dog.Hung() {
		hangs[h.Name] = true
		f := findings.Brokenf("hung-loop", remedy, "%s has had work and made no progress since %s", h.Name, h.Since.Format(time.TimeOnly))
		if h.Why != "" { // the process is not ended
			f = findings.Brokenf("hung-loop", "report what the agent's log says of it; if it waits for a disk, a lock or a child, free that, otherwise restart the agent", "%s: %s, since %s", h.Name, h.Why, h.Since.Format(time.TimeOnly))
		}
		f = f.About(h.Name)
		f.Since = &h.Since
		out = append(out, f)
	}
	for _, h := range ends {
		if hangs[h.Name] {
			continue
		}
		hangs[h.Name] = true
		f := findings.Notef("hung-loop", "the agent restarted itself at %s: %s had work and made no progress for %v; the stacks are in its log of that time",
			h.Since.Format(time.TimeOnly), h.Name, watchdog.Patience).About(h.Name)
		f.Since = &h.Since
		out = append(out, f)
	}
	return out
}
