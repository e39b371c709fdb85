package observe

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wake"
)

// A member visits who watches, within 10 s of hearing so and until that ends; who may not watch, or says so for longer than
// anybody may, is not visited. A visit that fails is tried again, more and more seldom.
func TestVisits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var mu sync.Mutex
		var plan mesh.Plan
		var began []time.Time
		inside, fails := 0, false
		changed := wake.NewOne()
		v := Visits{
			Plan:    func() mesh.Plan { mu.Lock(); defer mu.Unlock(); return plan },
			Changed: changed, Answer: func(mesh.PeerID, Stream) {}, Log: slog.New(slog.DiscardHandler),
			Visit: func(ctx context.Context, by []mesh.PeerID, _ func(mesh.PeerID, Stream)) error {
				mu.Lock()
				began = append(began, time.Now())
				inside++
				failing := fails
				mu.Unlock()
				if !failing {
					<-ctx.Done()
				}
				mu.Lock()
				defer mu.Unlock()
				if inside--; failing {
					return errors.New("the relay is full")
				}
				return nil
			},
		}
		var run sync.WaitGroup
		run.Go(func() { v.Run(ctx) })
		watch := func(for_ time.Duration, by ...mesh.PeerID) {
			mu.Lock()
			plan.Watched = mesh.Watched{By: by, Until: time.Now().Add(for_)}
			began = nil
			mu.Unlock()
			changed.Wake()
		}
		visited := func() (times, now int) { mu.Lock(); defer mu.Unlock(); return len(began), inside }
		for name, f := range map[string]func(){
			"nobody": func() { watch(time.Minute) }, "the past": func() { watch(-time.Second, "c") }, "forever": func() { watch(time.Hour, "c") },
		} {
			f()
			time.Sleep(time.Minute)
			if times, _ := visited(); times != 0 {
				t.Errorf("%s: visited %d times", name, times)
			}
		}
		watch(time.Minute, "c")
		time.Sleep(spread)
		if times, now := visited(); times != 1 || now != 1 {
			t.Errorf("after %v: visited %d times, %d now", spread, times, now)
		}
		time.Sleep(time.Minute)
		if times, now := visited(); times != 1 || now != 0 {
			t.Errorf("after its time: visited %d times, %d now", times, now)
		}
		watch(4*time.Minute, "c")
		time.Sleep(spread)
		watch(4 * time.Minute)
		time.Sleep(2 * time.Second)
		if _, now := visited(); now != 0 {
			t.Error("no observer any longer, and visited")
		}
		fails = true
		watch(4*time.Minute+30*time.Second, "c")
		time.Sleep(5 * time.Minute)
		if times, _ := visited(); times < 3 || times > 12 {
			t.Errorf("a visit that fails was tried %d times", times)
		}
		stop()
		run.Wait()
	})
}
