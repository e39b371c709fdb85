package packet

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"testing"
	"time"
)

// Each direction's queue is told, whatever the two clocks show, and while they wrap around.
func TestMeter(t *testing.T) {
	const trip = 25 * time.Millisecond // one way
	for _, offset := range []uint32{0, 1, math.MaxUint32, 1 << 31, 12345678} {
		for _, begins := range []uint32{0, math.MaxUint32 - 500_000, 1<<31 - 500_000} {
			m, start := meter{}, time.Unix(1000, 0)
			ask := func(at, ahead, behind time.Duration) {
				sent := begins + uint32(at.Microseconds())
				there := sent + offset + uint32((trip + ahead).Microseconds())
				back := at + 2*trip + ahead + behind
				m.answered(sent, there, begins+uint32(back.Microseconds()), start.Add(back))
			}
			expect := func(ahead, behind time.Duration) {
				t.Helper()
				if a, b, least, at := m.waits(); a != ahead || b != behind || least != 2*trip || at.IsZero() {
					t.Errorf("offset %d, from %d: %v ahead, %v behind, least %v; want %v, %v, %v", offset, begins, a, b, least, ahead, behind, 2*trip)
				}
			}
			const ms = time.Millisecond
			ask(0, 30*ms, 0)
			ask(100*ms, 0, 10*ms) // neither has met an empty path in both directions
			expect(0, 0)
			ask(500*ms, 80*ms, 5*ms)
			expect(0, 5*ms) // the shorter one: one alone may have waited for a processor
			ask(600*ms, 90*ms, 40*ms)
			expect(80*ms, 5*ms)
			m.answered(begins+900_000, 0, begins+800_000, start) // before it was sent
			m.answered(begins, 0, begins+20_000_000, start)      // after too long a time
			expect(80*ms, 5*ms)
			ask(900*ms, 0, 0)
			expect(0, 0)
		}
	}
}

// A route that becomes longer, or clocks that drift, do not count as a queue forever.
func TestMeterForgets(t *testing.T) {
	m, now := meter{}, time.Unix(1000, 0)
	if _, _, _, at := m.waits(); !at.IsZero() {
		t.Errorf("an answer at %v before any", at)
	}
	for after := time.Duration(0); after < 3*meterWindow; after += time.Second {
		longer := uint32(0)
		if after > 0 {
			longer = 50_000
		}
		m.answered(0, 10_000+longer, 20_000+longer, now.Add(after))
		switch ahead, _, _, _ := m.waits(); {
		case after >= 2*time.Second && after < meterWindow && ahead != 50*time.Millisecond:
			t.Fatalf("after %v a queue of %v", after, ahead)
		case after > 2*meterWindow+time.Second && ahead != 0:
			t.Fatalf("after %v still a queue of %v", after, ahead)
		}
	}
}

// Answers of any length and content are taken; one that is too short tells nothing.
func TestAnswers(t *testing.T) {
	d, sealer, _, _, r := receiving(t, 9)
	take := func(payload []byte) {
		b, err := sealer.Seal(nil, payload)
		if err != nil {
			t.Fatal(err)
		}
		d.take(b, nil)
		d.flush()
	}
	answer := binary.BigEndian.AppendUint32([]byte{kindAnswer, 0, 0, 0, 1}, 77)
	for n := range answer {
		take(answer[:n])
	}
	if _, _, _, at := r.out.meter.waits(); !at.IsZero() {
		t.Fatal("a short answer counts")
	}
	take(append(answer, bytes.Repeat([]byte{1}, 100)...))
	if _, _, _, at := r.out.meter.waits(); at.IsZero() {
		t.Error("an answer does not count")
	}
	take([]byte{kindQuery, 0, 0, 0, 1}) // nothing can be sent
}

// Of several sessions the one tells that knows the least delays, unless nothing has come through it lately.
func TestSessionThatTells(t *testing.T) {
	const ms = time.Millisecond
	now := time.Unix(1000, 0)
	with := func(trip time.Duration, at time.Time) *sending {
		ss := &sending{}
		ss.meter.answered(0, uint32(trip.Microseconds()/2), uint32(trip.Microseconds()), at)
		return ss
	}
	none, short, long := &sending{}, with(20*ms, now), with(30*ms, now.Add(100*ms))
	dead := with(10*ms, now.Add(-2*asNew))
	for name, c := range map[string]struct {
		sessions []*sending
		want     time.Duration
	}{
		"no answer":              {[]*sending{none, none}, 0},
		"one":                    {[]*sending{none, short, none}, 20 * ms},
		"began with a queue":     {[]*sending{short, long}, 20 * ms},
		"the same, first":        {[]*sending{long, short}, 20 * ms},
		"answers no more":        {[]*sending{dead, long}, 30 * ms},
		"answers no more, later": {[]*sending{long, dead, none}, 30 * ms},
		"answered long ago":      {[]*sending{dead}, 10 * ms},
	} {
		if _, _, least, at := newest(slices.Values(c.sessions)); least != c.want || at.IsZero() != (c.want == 0) {
			t.Errorf("%s: least %v at %v, want %v", name, least, at, c.want)
		}
	}
}

// Questions in a row are answered once: nobody has this node send as much as they like.
func TestQuestionsInARow(t *testing.T) {
	r := newReceiver(sendingOn(New(Config{}), nil), "")
	r.answered = time.Now().Add(time.Hour) // a moment ago
	if r.queried(1); len(r.pending) != 0 {
		t.Error("a question soon after another one is answered")
	}
	r.answered = time.Time{}
	r.queried(2)
	r.answered = time.Time{}
	r.queried(3) // while that waits
	if q := <-r.pending; q.sent != 2 || len(r.pending) != 0 {
		t.Errorf("answered: %d, and %d more", q.sent, len(r.pending))
	}
}
