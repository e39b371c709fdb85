package relays

import (
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

func TestParseLoad(t *testing.T) {
	for text, want := range map[string]int{"0\n": 0, "69\n": 69, "100\n": 100, "100": -1, "": -1, "101\n": -1, "-1\n": -1, "a\n": -1, "1.5\n": -1,
		strings.Repeat("0", 100) + "1\n": -1} {
		got, err := parseLoad(strings.NewReader(text))
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%.20q: %d, %v", text, got, err)
		}
	}
}

// A relay has room while it said so lately.
func TestRoom(t *testing.T) {
	l := Loads{client: func(peer.ID) *client { return nil }, of: make(map[peer.ID]*loaded)}
	if l.Room("r") {
		t.Error("a relay that has said nothing has room")
	}
	for _, c := range []struct {
		percent int
		ago     time.Duration
		room    bool
	}{{0, 0, true}, {loadHigh - 1, loadEvery, true}, {loadHigh, 0, false}, {100, 0, false}, {0, loadHolds, false}} {
		l.of["r"].percent, l.of["r"].told = c.percent, time.Now().Add(-c.ago)
		if got := l.Room("r"); got != c.room {
			t.Errorf("%d %% %v ago: %v", c.percent, c.ago, got)
		}
	}
	l.forget("r")
	if len(l.of) != 0 {
		t.Error("a relay that is none now is remembered")
	}
}
