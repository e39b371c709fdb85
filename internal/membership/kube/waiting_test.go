package kube

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A first start that waits for some seconds is normal; one that lasts is a warning, once a cause.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := &Source{cfg: Config{Log: slog.New(slog.NewTextHandler(&log, nil))}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		causes := make(chan error)
		go s.logWaiting(ctx, causes)
		levels := func(want string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for line := range strings.Lines(log.String()) {
				_, rest, _ := strings.Cut(line, "level=")
				level, _, _ := strings.Cut(rest, " ")
				_, cause, _ := strings.Cut(strings.TrimSpace(line), "err=")
				got = append(got, level+" "+cause)
			}
			if have := strings.Join(got, ", "); have != want {
				t.Errorf("logged %q, want %q", have, want)
			}
			log.Reset()
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
