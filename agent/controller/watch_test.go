package controller

import (
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"edgemesh/internal/watchdog"
)

// Each of these is work of a loop that is watched.
func TestWatchedCalls(t *testing.T) {
	for name, call := range map[string]func(*watchdog.Loop){
		"election":          func(l *watchdog.Loop) { (&election{loop: l}).run(t.Context(), nil) },
		"surplus: news":     func(l *watchdog.Loop) { (&surplus{loop: l}).hear(news{}) },
		"surplus: deletion": func(l *watchdog.Loop) { _ = (&surplus{loop: l}).sweep(t.Context()) },
		"records: news":     func(l *watchdog.Loop) { (&records{loop: l}).hear(news{}) },
		"records: round":    func(l *watchdog.Loop) { _ = (&records{loop: l}).round(t.Context()) },
		"rollouts: news":    func(l *watchdog.Loop) { (&rollouts{loop: l}).hear(news{}, time.Now()) },
		"rollouts: round":   func(l *watchdog.Loop) { _, _ = (&rollouts{loop: l}).round(t.Context(), time.Now()) },
		"sight: news":       func(l *watchdog.Loop) { (&sight{loop: l}).hear(news{}) },
		"sight: round":      func(l *watchdog.Loop) { _ = (&sight{loop: l}).round(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				back := make(chan struct{})
				dog := watchdog.New(watchdog.Config{Block: func(string) { <-back; runtime.Goexit() }})
				loop := dog.Loop(name)
				go call(loop)
				synctest.Wait()
				busy := func() bool {
					return slices.ContainsFunc(dog.Works(), func(w watchdog.Work) bool { return w.Name == name && w.Busy })
				}
				if !busy() {
					t.Errorf("%+v: it has work", dog.Works())
				}
				request := loop.Outside()
				if busy() {
					t.Error("it waits for another machine")
				}
				request()
				close(back)
			})
		})
	}
}
