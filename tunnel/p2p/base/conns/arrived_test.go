package conns

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"edgemesh/internal/wake"
)

func TestArrived(t *testing.T) {
	for name, c := range map[string]struct {
		after, limit time.Duration
		want         error
	}{
		"soon":           {after: arrival / 2, limit: time.Hour},
		"too late":       {after: 2 * arrival, limit: time.Hour, want: ErrRefused},
		"the wait ended": {after: 2 * arrival, limit: arrival / 2, want: context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var changed wake.All
				start := time.Now()
				time.AfterFunc(c.after, changed.Broadcast)
				ctx, cancel := context.WithTimeout(t.Context(), c.limit)
				defer cancel()
				err := Arrived(ctx, changed.Until, func() bool { return time.Since(start) >= c.after })
				if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
					t.Errorf("%v, want %v", err, c.want)
				}
			})
		})
	}
}
