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
		dog := watchdog.New(watchdog.Config{Block: func(string) { <-back; runtime.Goexit() }})
		go (&membership{loop: dog.Loop("membership")}).set(mesh.State{})
		synctest.Wait()
		if all := dog.Works(); len(all) != 1 || all[0].Name != "membership" || !all[0].Busy {
			t.Errorf("%+v: the membership has work", all)
		}
		close(back)
	})
}
