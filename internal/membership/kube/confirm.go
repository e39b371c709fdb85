package kube

import (
	"context"
	"net/http/httptrace"
	"sync"
	"time"
)

// confirmation says when new pods may be given addresses of this node's blocks. After a boot these come from the snapshot,
// and the node may have been given others since: its Node was deleted and made again while it was off. A pod with an address
// of the old ones would be cut off until it is deleted. So new pods wait until an API server that answers has named the
// blocks, and not at all where none answers: a node that boots offline starts its pods immediately.
type confirmation struct {
	done chan struct{} // closed when nobody has to wait
	once sync.Once

	connect time.Duration // how long a connection to the API may take; subnet.json is promised 1 s after an offline start
	answer  time.Duration // how long the API has for its answer; the plugin waits 6 s
}

func newConfirmation() *confirmation {
	return &confirmation{done: make(chan struct{}), connect: 500 * time.Millisecond, answer: 5 * time.Second}
}

// end ends the wait; it may be called more than once.
func (c *confirmation) end() { c.once.Do(func() { close(c.done) }) }

// check ends the wait if no API server answers review, or if it did not name this node's blocks in time. Its Node may be
// missing until kubelet has registered it again.
func (c *confirmation) check(ctx context.Context, review func(context.Context) error) {
	defer c.end()
	ctx, cancel := context.WithTimeout(ctx, c.answer)
	defer cancel()
	connected := make(chan struct{})
	once := sync.Once{}
	failed := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{ConnectDone: func(_, _ string, err error) {
			if err == nil {
				once.Do(func() { close(connected) })
			}
		}})
		if review(traced) != nil {
			close(failed)
			return
		}
		once.Do(func() { close(connected) }) // over a connection that was there before
	})
	select {
	case <-connected:
	case <-failed:
		return
	case <-c.done:
		return
	case <-time.After(c.connect):
		return
	}
	select {
	case <-failed:
	case <-c.done:
	case <-ctx.Done():
	}
}
