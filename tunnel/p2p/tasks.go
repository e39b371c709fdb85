package p2p

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/who/identity"
)

// tasks are the goroutines of one node.
type tasks struct {
	ctx    context.Context //nolint:containedctx // the lifetime of the node's goroutines
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex // guards closed against wg.Add; a leaf
	closed bool
}

func newTasks() *tasks {
	t := &tasks{}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// spawn runs f in a goroutine that is waited for. It returns false when the tasks have been
// stopped.
func (t *tasks) spawn(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.wg.Go(f)
	return true
}

// stop ends ctx and lets no further task begin. It returns false when it was called before.
func (t *tasks) stop() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.closed
	t.closed = true
	t.cancel()
	return !was
}

// sinceBoot is the time since the host was started, the time it slept included
// (CLOCK_BOOTTIME). Nobody can set it: whether a path is alive does not depend on what
// an operator or NTP makes of the date.
func sinceBoot() ladder.Time {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // fails on no Linux since 2.6.39
	return time.Duration(ts.Nano())
}

// tuned is what tests choose.
type tuned struct {
	now          func() ladder.Time // nil: sinceBoot
	renew        time.Duration      // of packets' keys; 0: packet's
	keys         identity.Renewal   // of TCP connections
	standbyEvery time.Duration      // 0: standbyEvery
	circuits     bool               // no member is dialed but through relays
}
