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
		f := findings.Brokenf("hung-loop", remedy, "%s has had work and made no progress since %s", h.Name, h.Since.Format(time.TimeOnly)).About(h.Name)
		f.Since = &h.Since
		out = append(out, f)
	}
	for _, h := range ends {
		if hangs[h.Name] {
			continue
		}
		hangs[h.Name] = true
		f := findings.Warningf("hung-loop", "report the stacks in the agent's log of that time",
			"the agent restarted itself at %s: %s had work and made no progress for %v", h.Since.Format(time.TimeOnly), h.Name, watchdog.Patience).About(h.Name)
		f.Since = &h.Since
		out = append(out, f)
	}
	return out
}
