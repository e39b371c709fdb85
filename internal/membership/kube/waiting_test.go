package kube

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// lines are what was written.
type lines chan string

func (l lines) Write(p []byte) (int, error) { l <- string(p); return len(p), nil }

// A first start that waits for some seconds is normal; one that lasts is a warning, once a cause.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := make(lines, 8)
		s := &Source{cfg: Config{Log: slog.New(slog.NewTextHandler(log, nil))}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		causes := make(chan error)
		go s.logWaiting(ctx, causes)
		levels := func(want string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for len(log) > 0 {
				line := <-log
				_, rest, _ := strings.Cut(line, "level=")
				level, _, _ := strings.Cut(rest, " ")
				_, cause, _ := strings.Cut(strings.TrimSpace(line), "err=")
				got = append(got, level+" "+cause)
			}
			if have := strings.Join(got, ", "); have != want {
				t.Errorf("logged %q, want %q", have, want)
			}
		}
		causes <- errors.New("a")
		levels("INFO a")
		time.Sleep((lasting - 1) * time.Second)
		causes <- errors.New("b")
		levels("INFO b")
		time.Sleep(time.Second + 1)
		levels("WARN b")
		time.Sleep(time.Hour)
		levels("")
		causes <- errors.New("c")
		levels("WARN c")
	})
}
