package proxy

import (
	"errors"
	"sync/atomic"
)

// causes are all, by their names in metrics.
var causes = [...]struct { //nolint:gochecknoglobals // a constant
	name  string
	cause Cause
}{
	{"unreachable", Unreachable}, {"silent", Silent}, {"unauthorized", Unauthorized}, {"forbidden", Forbidden}, {"failed", Failed},
	{"rubbish", Rubbish}, {"intercepted", Intercepted}, {"cut", Cut}, {"unanswered", Unanswered}, {"garbled", Garbled}, {"refused", Refused},
}

// Failures count the connections that a proxy did not give, by cause. The zero value is ready for use.
type Failures struct{ n [len(causes)]atomic.Uint64 }

// Note counts err, if it is a proxy's.
func (f *Failures) Note(err error) {
	var e *Error
	if !errors.As(err, &e) {
		return
	}
	for i, c := range causes {
		if c.cause == e.Cause {
			f.n[i].Add(1)
		}
	}
}

// By returns how many there were of each cause, also of those that were not seen.
func (f *Failures) By() map[string]uint64 {
	out := make(map[string]uint64, len(causes))
	for i, c := range causes {
		out[c.name] = f.n[i].Load()
	}
	return out
}
