package relays

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

// said is what a relay says of its load.
func said(text string) (percent int, err error) {
	percent, _, err = parseLoad(strings.NewReader(text))
	return percent, err
}

func TestParseLoad(t *testing.T) {
	for text, want := range map[string]int{"0\n": 0, "69\n": 69, "100\n": 100, "100": -1, "": -1, "101\n": -1, "-1\n": -1, "a\n": -1, "1.5\n": -1,
		"unknown\n": -1, strings.Repeat("0", 100) + "1\n": -1} {
		got, err := said(text)
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%.20q: %d, %v", text, got, err)
		}
	}
}

// A relay may say that it is crowded, whatever it knows of its bandwidth.
func TestParseCrowded(t *testing.T) {
	for text, want := range map[string]bool{"0\n": false, "100\ncrowded\n": true, "unknown\ncrowded\n": true, "1\ncrowded": false, "1\n\n": false, "1\nsomething new\n": false} {
		if _, crowded, _ := parseLoad(strings.NewReader(text)); crowded != want {
			t.Errorf("%q: %v", text, crowded)
		}
	}
	if got, err := said("1\nsomething new\n"); got != 1 || err != nil {
		t.Errorf("%d, %v", got, err)
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
	for _, c := range []struct {
		answer string
		full   string // "": room
	}{
		{"0\n", ""},
		{"nonsense\n", ""}, // what it said before still holds
		{"unknown\n", "limits.bandwidth"},
		{"nonsense\n", "does not say how loaded it is"},
		{"70\n", "70 %"},
		{"69\n", ""},
	} {
		l.of["r"].answered(said(c.answer))
		if room, full := l.Room("r"), l.Full("r"); room != (c.full == "") || room != (full == "") || !strings.Contains(full, c.full) {
			t.Errorf("answer %q: room %v, %q", c.answer, room, full)
		}
	}
	var levels []slog.Level
	for _, answer := range []string{"a\n", "b\n", strings.Repeat("9", 100), "unknown\n", "a\n", "1\n", "101\n"} {
		levels = append(levels, l.of["r"].answered(said(answer)))
	}
	if w, d := slog.LevelWarn, slog.LevelDebug; !slices.Equal(levels, []slog.Level{w, d, d, d, d, d, w}) {
		t.Errorf("%v: nonsense is not reported once", levels)
	}
	l.forget("r")
	if l.Full("r") == "" {
		t.Error("a relay that has said nothing is not full")
	}
	if len(l.of) != 0 {
		t.Error("a relay that is none now is remembered")
	}
}
