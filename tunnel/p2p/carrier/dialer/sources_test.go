package dialer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/transport"
	"golang.org/x/sys/unix"
)

// Dials from several own addresses: how many there are, how many at the same time, and when an answer is there.
func TestRace(t *testing.T) {
	type dialed struct {
		connected, ended time.Duration // 0: not connected, silent
		err              error
	}
	var silent dialed
	refused := dialed{ended: 40 * time.Millisecond, err: fmt.Errorf("dial: %w", unix.ECONNREFUSED)}
	for what, x := range map[string]struct {
		metered    bool
		dials      []dialed // in their order
		err        error
		count, top int
		within     time.Duration
	}{
		"round trips of 150 ms":              {false, []dialed{{150 * time.Millisecond, 600 * time.Millisecond, nil}, silent}, nil, 1, 1, 600 * time.Millisecond},
		"the kernel's choice is silent":      {false, []dialed{silent, {20 * time.Millisecond, 80 * time.Millisecond, nil}}, nil, 2, 2, 350 * time.Millisecond},
		"refused":                            {false, []dialed{refused, silent}, unix.ECONNREFUSED, 1, 1, 50 * time.Millisecond},
		"refused while the first is silent":  {false, []dialed{silent, refused}, unix.ECONNREFUSED, 2, 2, 300 * time.Millisecond},
		"metered, the first is silent":       {true, []dialed{silent, {20 * time.Millisecond, 80 * time.Millisecond, nil}}, nil, 2, 1, 1600 * time.Millisecond},
		"metered, round trips of 600 ms":     {true, []dialed{{600 * time.Millisecond, 2400 * time.Millisecond, nil}, silent}, nil, 1, 1, 2400 * time.Millisecond},
		"metered, the last one has its time": {true, []dialed{silent, {1800 * time.Millisecond, 4 * time.Second, nil}}, nil, 2, 1, 5500 * time.Millisecond},
		"metered, no route from the first":   {true, []dialed{{ended: time.Millisecond, err: unix.ENETUNREACH}, {20 * time.Millisecond, 80 * time.Millisecond, nil}}, nil, 2, 1, 90 * time.Millisecond},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				var mu sync.Mutex // of the next three
				count, now, top := 0, 0, 0
				began := time.Now()
				c, err := race(ctx, []netip.Addr{netip.MustParseAddr("2001:db8::1")}, x.metered, func(ctx context.Context) (transport.CapableConn, error) {
					mu.Lock()
					one := x.dials[count]
					count, now = count+1, now+1
					top = max(top, now)
					mu.Unlock()
					defer func() {
						mu.Lock()
						now--
						mu.Unlock()
					}()
					if one.connected > 0 {
						time.AfterFunc(one.connected, attemptOf(ctx).connected)
					}
					end := time.After(one.ended)
					if one.ended == 0 {
						end = nil
					}
					select {
					case <-end:
						return new(fakeConn), one.err
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				})
				if took := time.Since(began); !errors.Is(err, x.err) || (err == nil) != (c != nil) || took > x.within {
					t.Errorf("%v, %v after %v", c, err, took)
				}
				if count != x.count || top != x.top {
					t.Errorf("%d dials, %d at the same time, want %d and %d", count, top, x.count, x.top)
				}
			})
		})
	}
}
