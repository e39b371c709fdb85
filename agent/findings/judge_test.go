package findings

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A check that panics or blocks takes nothing else with it, is a finding itself, and is not started twice.
func TestJudge(t *testing.T) {
	block, started, wellLooked := make(chan struct{}), 0, 0
	crash := true
	var log bytes.Buffer
	j := NewJudge(slog.New(slog.NewTextHandler(&log, nil)),
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
	for round := range 3 {
		began := time.Now()
		got := j.Look(t.Context(), 50*time.Millisecond, 0)
		if took := time.Since(began); took > time.Second || round > 0 && took > 40*time.Millisecond {
			t.Errorf("round %d took %v: what is known to hang is waited for", round, took)
		}
		if ids(got) != "judge bad; judge slow; tun" || !strings.Contains(got[0].Text, "nil map") || !strings.Contains(got[1].Text, "has not returned") {
			t.Errorf("%+v", got)
		}
	}
	if n := strings.Count(log.String(), "crashed"); n != 1 {
		t.Errorf("one crash, logged %d times", n)
	}
	crash = false
	close(block)
	<-j.slots[1].done
	if got := j.Look(t.Context(), 50*time.Millisecond, Afresh); ids(got) != "udp; tun" || started > 2 {
		t.Errorf("%d runs: %+v", started, got)
	}
	if wellLooked != 2 {
		t.Errorf("looked %d times, want once, and again when fresh", wellLooked)
	}
}

// A check that returns just when its time is over is heard. A run ends when the last one who waits for it goes, which does not
// count as a look, and with its judge.
func TestJudgeEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := NewJudge(slog.New(slog.DiscardHandler), Check{Name: "probe", Every: time.Hour, Look: func(ctx context.Context) []Finding {
			<-ctx.Done()
			return []Finding{Warningf("udp", "x", "%v", ctx.Err())}
		}})
		said := func() string { return j.Look(t.Context(), 8*time.Second, 0)[0].Text }
		client, gone := context.WithTimeout(t.Context(), time.Second)
		defer gone()
		if got := j.Look(client, 8*time.Second, 0); len(got) != 0 {
			t.Errorf("%+v", got)
		}
		synctest.Wait() // else a run for nobody is in progress
		began := time.Now()
		if got := said(); got != "context deadline exceeded" || time.Since(began) != 8*time.Second {
			t.Errorf("after %v: %s", time.Since(began), got)
		}
		go j.Look(t.Context(), time.Hour, Afresh)
		synctest.Wait()
		began = time.Now()
		j.Close()
		if took := time.Since(began); took != 0 {
			t.Errorf("closed after %v", took)
		}
		if got := said(); got != "context canceled" { // and nothing is started
			t.Errorf("after the end: %s", got)
		}
	})
}
