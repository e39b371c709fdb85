package kube

import "time"

const (
	// lookEvery is about how often the Lease of the NodeRecords' keeper is read; the leader renews it every second. While it
	// was renewed at the last look, keptEvery is enough, or when an object shows that something depends on it; likewise after some time in
	// which nobody renewed it.
	lookEvery = 10 * time.Second
	keptEvery = 10 * time.Minute
	// renewedLooks are how many looks in a row must find it renewed before the NodeRecords are believed to be kept, and
	// silentLooks how many must not before they are not: leaders change within one.
	renewedLooks = 2
	silentLooks  = 3
)

// renewal judges by looks at the Lease of the NodeRecords' keeper whether a controller renews it. No clock is compared with
// the controller's.
type renewal struct {
	last         string // version of the Lease
	good, silent int    // looks in a row
	kept         bool
}

// look takes what a look has shown: the Lease's version, "" for none or one that nobody holds.
func (r *renewal) look(version string) bool {
	if version != "" && version != r.last {
		if r.last != "" {
			r.good++
		}
		r.silent = 0
	} else {
		r.good = 0
		r.silent++
	}
	if version != "" {
		r.last = version
	}
	switch {
	case r.good >= renewedLooks:
		r.kept = true
	case r.silent >= silentLooks:
		r.kept = false
	}
	return r.kept
}

// pause is about how long to wait for the next look.
func (r *renewal) pause() time.Duration {
	if r.kept && r.silent == 0 {
		return keptEvery
	}
	return min(lookEvery<<min(max(r.silent-silentLooks, 0), 6), keptEvery)
}
