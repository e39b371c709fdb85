// CoDel decides which packets of a flow signal congestion to its sender, before a queue's bound drops them (RFC 8289
// section 5).
package tunnel

import "math"

// codelTarget is how long packets of a flow may wait, and for how long they may wait for longer; nanoseconds.
type codelTarget struct{ Delay, Interval int64 }

// codelFlow is what CoDel knows of one flow: it decides which packets signal the sender to slow down, before the queue's bound
// drops them (RFC 8289 section 5).
type codelFlow struct {
	above    int64 // when the delay will have stood for an interval; 0: it is below the target
	next     int64 // the next drop
	count    int64 // drops in this spell
	dropping bool
}

// drop decides about a packet that leaves now after such a delay, nanoseconds, while few of its flow wait, or more. A flow with
// few did not make the queue that it stands in.
func (f *codelFlow) drop(t codelTarget, now, delay int64, few bool) bool {
	if delay < t.Delay || few {
		*f = codelFlow{}
		return false
	}
	switch {
	case f.above == 0:
		f.above = now + t.Interval
	case !f.dropping && now >= f.above:
		f.dropping, f.count = true, 1
		f.next = now + t.Interval
		return true
	case f.dropping && now >= f.next:
		f.count++
		f.next = now + t.Interval/int64(math.Sqrt(float64(f.count)))
		return true
	}
	return false
}
