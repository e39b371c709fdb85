package socket

import (
	"testing"
	"time"
)

// What arrives may be as large as what was sent before, however small what is sent now is: a flow has ended, and pings are sent.
func TestRateOfWhatWasSentBefore(t *testing.T) {
	now := time.Unix(1000, 0)
	s := sight{segment: testSegment, sent: segments(1000)}
	var r round
	r.begin(s, now)
	s.sent.bytes, s.sent.segments = s.sent.bytes+10*60, s.sent.segments+10 // pings
	s.arrived = segments(500)
	if rate, want := r.rate(s, now.Add(time.Second)), uint64(500*testSegment); rate != want {
		t.Errorf("%d bytes/s, want %d", rate, want)
	}
	// A hole is filled by a short segment: those behind it have counted already.
	r.begin(s, now)
	s.arrived.bytes--
	if rate := r.rate(s, now.Add(time.Second)); rate != 0 {
		t.Errorf("%d bytes/s, want 0", rate)
	}
}
