package host

import (
	"strings"
	"sync"
	"time"

	"edgemesh/agent/findings"
	"edgemesh/internal/wording"
)

// interfaces is the part that other programs configure, and the finding that says so.
const interfaces = "interfaces"

// othersRest is how long nothing was removed when it is over: half a DHCP client's usual hour, and it comes back.
const othersRest = 10 * time.Minute

// others counts addresses and routes that other programs gave our interfaces and pods', and that were removed.
type others struct {
	mu          sync.Mutex // a leaf
	all         uint64     // since the start
	times       int        // since first
	first, last time.Time
	latest      string
	made        undone // for the log alone
}

func (o *others) add(now time.Time, what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now.Sub(o.last) > othersRest {
		o.times, o.first = 0, now
	}
	o.all++
	o.times++
	o.last, o.latest = now, strings.TrimPrefix(what, "delete ")
}

// finding is what was removed lately.
func (o *others) finding(now time.Time) []findings.Finding {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.times == 0 || now.Sub(o.last) > othersRest {
		return nil
	}
	f := findings.Warningf(interfaces, remedyOf(interfaces), "another program configures interfaces of the pod network; the agent removed %s since %s, the last at %s: %s",
		wording.Count(o.times, "address or route", "addresses and routes"), o.first.Format(time.TimeOnly), o.last.Format(time.TimeOnly), o.latest)
	f.Since = &o.first
	return []findings.Finding{f}
}

// Others says whether another program configures our interfaces or pods'.
func (h *Host) Others() []findings.Finding { return h.others.finding(time.Now()) }

// Removed counts the addresses and routes of other programs that were removed from our interfaces and pods'.
func (h *Host) Removed() uint64 {
	h.others.mu.Lock()
	defer h.others.mu.Unlock()
	return h.others.all
}
