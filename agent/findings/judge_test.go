package findings

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// A check that panics or blocks takes nothing else with it, is a finding itself, and is not started twice.
func TestJudge(t *testing.T) {
	block, started, wellLooked := make(chan struct{}), 0, 0
	crash := true
	j := NewJudge(50*time.Millisecond, slog.New(slog.DiscardHandler),
		Check{Name: "bad", Look: func(context.Context) []Finding {
			if crash {
				panic("nil map")
			}
			return nil
		}},
		Check{Name: "slow", Look: func(context.Context) []Finding {
			started++
			<-block
			return []Finding{Warningf("udp", "x", "closed")}
		}},
		Check{Name: "well", Every: time.Hour, Look: func(context.Context) []Finding {
			wellLooked++
			return []Finding{Brokenf("tun", "x", "down")}
		}},
	)
	for range 3 {
		began := time.Now()
		got := j.Look(t.Context(), false)
		if took := time.Since(began); took > time.Second {
			t.Errorf("took %v", took)
		}
		if ids(got) != "judge bad; judge slow; tun" || !strings.Contains(got[0].Text, "nil map") || !strings.Contains(got[1].Text, "has not returned") {
			t.Errorf("%+v", got)
		}
	}
	crash = false
	close(block)
	if got := j.Look(t.Context(), true); ids(got) != "udp; tun" || started > 2 {
		t.Errorf("%d runs: %+v", started, got)
	}
	if wellLooked != 2 {
		t.Errorf("looked %d times, want once, and again when fresh", wellLooked)
	}
}
