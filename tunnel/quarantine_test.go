package tunnel

import "testing"

// resettable notes that it was reset.
type resettable struct {
	Stream
	reset bool
}

func (r *resettable) Reset() { r.reset = true }

// TestOldestStreamIsReset: a peer that opens more streams than a lane may have loses the oldest, which ends.
func TestOldestStreamIsReset(t *testing.T) {
	const most = 3
	var s streams
	var all []*resettable
	for i := range most + 2 {
		all = append(all, &resettable{})
		if !s.add(0, all[i], most, 0) {
			t.Fatalf("stream %d is refused", i)
		}
	}
	for i, x := range all {
		if x.reset != (i < 2) {
			t.Errorf("stream %d of %d: reset %v", i, len(all), x.reset)
		}
	}
	if len(s.live[0]) != most {
		t.Errorf("%d streams live, want %d", len(s.live[0]), most)
	}
}
