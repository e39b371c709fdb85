package peers

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/path/paths"
)

// The machine may name two paths between a wake-up and the moment the call looks: the second is taken then, and its wake-up
// comes when there is nothing to try.
func TestWakeUpWithoutPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Peer{t: &env{Config: Config{Ctx: t.Context()}}}
		o := &opening{ready: wake.NewOne()}
		o.end() // of a path that was taken before
		first, second := new(paths.Conn), errors.New("no path is left")
		time.AfterFunc(time.Second, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			o.path = first
			o.end()
		})
		x, try, err := p.nextPath(t.Context(), o)
		if x != first || err != nil || try.Err() != nil {
			t.Fatalf("%p, %v; want %p", x, err, first)
		}
		o.end()
		if !errors.Is(try.Err(), context.Canceled) {
			t.Errorf("a try that is moved continues: %v", try.Err())
		}
		time.AfterFunc(time.Second, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			o.err = second
			o.end()
		})
		if x, _, err := p.nextPath(t.Context(), o); x != nil || !errors.Is(err, second) {
			t.Errorf("%p, %v; want %v", x, err, second)
		}
	})
}
