package controller

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"edgemesh/internal/watchdog"
)

// Each of these is work of a loop that is watched.
func TestWatchedCalls(t *testing.T) {
	for name, call := range map[string]func(*watchdog.Loop){
		"election":          func(l *watchdog.Loop) { (&election{loop: l}).run(t.Context(), nil) },
		"surplus: news":     func(l *watchdog.Loop) { (&surplus{loop: l}).hear(t.Context(), news{}) },
		"surplus: deletion": func(l *watchdog.Loop) { _ = (&surplus{loop: l}).sweep(t.Context()) },
		"records: news":     func(l *watchdog.Loop) { (&records{loop: l}).hear(t.Context(), news{}) },
		"records: round":    func(l *watchdog.Loop) { _ = (&records{loop: l}).round(t.Context()) },
		"rollouts: news":    func(l *watchdog.Loop) { (&rollouts{loop: l}).hear(t.Context(), news{}, time.Now()) },
		"rollouts: round":   func(l *watchdog.Loop) { _, _ = (&rollouts{loop: l}).round(t.Context(), time.Now()) },
		"sight: news":       func(l *watchdog.Loop) { (&sight{loop: l}).hear(t.Context(), news{}) },
		"sight: round":      func(l *watchdog.Loop) { _ = (&sight{loop: l}).round(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				back := make(chan struct{})
				var began string
				dog := watchdog.New(watchdog.Config{Block: func(loop string) { began = loop; <-back; runtime.Goexit() }})
				loop := dog.Loop(name)
				go call(loop)
				synctest.Wait()
				if began != name {
					t.Errorf("%q began work", began)
				}
				close(back)
			})
		})
	}
}

// A request is no work of the loop that waits for it, and ends with it.
func TestRequestsAreOutside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dog, dir := watchdog.New(watchdog.Config{}), t.TempDir()
		now := time.Now().Format(time.RFC3339)
		restarts := fmt.Sprintf(`[{"at": %[1]q}, {"at": %[1]q}, {"at": %[1]q}]`, now) // so it only reports
		if err := os.WriteFile(filepath.Join(dir, watchdog.File), []byte(restarts), 0o600); err != nil {
			t.Fatal(err)
		}
		dog.Remember(dir)
		defer dog.Start(t.Context())()
		hangs := func() bool { time.Sleep(watchdog.Patience + 2*time.Second); return len(dog.Hung()) > 0 }
		work, end := dog.Loop("loop").Begin(t.Context())
		defer end()
		back := make(chan struct{})
		api := watched{silentAPI{back: back}}
		for name, request := range map[string]func() error{
			"get":    func() error { return api.Get(work, "", nil) },
			"create": func() error { return api.Create(work, "", nil, nil) },
			"patch":  func() error { return api.Patch(work, "", "", nil, nil, nil) },
			"remove": func() error { return api.Remove(work, "", "") },
		} {
			go func() { _ = request() }()
			if hangs() {
				t.Errorf("%s: it waits for another machine", name)
			}
			back <- struct{}{}
			if !hangs() {
				t.Errorf("%s: the request is over", name)
			}
		}
	})
}

// silentAPI answers when it is allowed to.
type silentAPI struct {
	cluster
	back chan struct{}
}

func (a silentAPI) Get(context.Context, string, any) error         { <-a.back; return nil }
func (a silentAPI) Create(context.Context, string, any, any) error { <-a.back; return nil }
func (a silentAPI) Remove(context.Context, string, string) error   { <-a.back; return nil }
func (a silentAPI) Patch(context.Context, string, string, url.Values, any, any) error {
	<-a.back
	return nil
}
