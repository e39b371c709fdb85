package client

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"
)

// Contact is what came of the requests to an API, or to the cache in front of it, since the start.
type Contact struct {
	Server   string    // its URL
	Answered uint64    // requests with a good answer
	Refused  uint64    // with another one: 403, 500 …
	Failed   uint64    // without any
	Last     time.Time // of the last answer, or of the last news of a watch; zero: there was none
}

// contact counts for a client and its copies.
type contact struct {
	good, refusals, failures atomic.Uint64
	last                     atomic.Int64 // Unix nanoseconds; 0: never
}

// ContactOf is what came of c's requests.
func ContactOf(c *Client) Contact {
	out := Contact{Server: c.URL(), Answered: c.met.good.Load(), Refused: c.met.refusals.Load(), Failed: c.met.failures.Load()}
	if at := c.met.last.Load(); at != 0 {
		out.Last = time.Unix(0, at)
	}
	return out
}

func (m *contact) heard() { m.last.Store(time.Now().UnixNano()) }

func (m *contact) answered(status int) {
	m.heard()
	if status/100 == http.StatusOK/100 {
		m.good.Add(1)
	} else {
		m.refusals.Add(1)
	}
}

// failed counts a request without an answer, unless nobody waits for one any longer.
func (m *contact) failed(ctx context.Context) {
	if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		m.failures.Add(1)
	}
}
