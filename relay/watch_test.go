package main

import (
	"runtime"
	"testing"
	"testing/synctest"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/watchdog"
)

// A membership that does not get into force is work of a loop that is watched.
func TestWatchedMembership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := make(chan struct{})
		var began string
		dog := watchdog.New(watchdog.Config{Block: func(loop string) { began = loop; <-back; runtime.Goexit() }})
		go (&membership{loop: dog.Loop("membership")}).set(mesh.State{})
		synctest.Wait()
		if began != "membership" {
			t.Errorf("%q began work, not the membership", began)
		}
		close(back)
	})
}
