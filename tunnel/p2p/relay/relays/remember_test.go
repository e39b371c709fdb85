package relays

import (
	"fmt"
	"testing"
	"time"
)

// TestNewestPlaceIsKept: of more places than are kept the one used last stays, and the one used longest ago goes.
func TestNewestPlaceIsKept(t *testing.T) {
	r, now := &remembered{}, time.Now()
	for i := range maxPlaces + 1 {
		r.note(fmt.Sprintf("5.5.5.%d", i), silence{held: time.Minute}, now, 0)
	}
	if s, ok := r.at(fmt.Sprintf("5.5.5.%d", maxPlaces), now, 0); !ok || s.held != time.Minute {
		t.Errorf("the newest place: %+v, %v", s, ok)
	}
	if _, ok := r.at("5.5.5.0", now, 0); ok || len(r.places) != maxPlaces {
		t.Errorf("%d places are kept, the oldest among them: %v", len(r.places), ok)
	}
}
