package kube

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"time"

	"edgemesh/test/fair"
)

// New pods wait for an API server that answers, and for nothing else.
func TestConfirmation(t *testing.T) {
	const never = time.Hour
	dead := errors.New("no uplink")
	refuses := func(context.Context) error { return dead }
	silent := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	answers := func(context.Context) error { return nil }
	for name, x := range map[string]struct {
		review          func(context.Context) error
		connect, answer time.Duration
		waits           bool
	}{
		"nobody answers":                         {refuses, never, never, false},
		"no connection":                          {silent, time.Millisecond, never, false},
		"the API answers":                        {answers, never, never, true},
		"it does not name the blocks for long":   {answers, never, 50 * time.Millisecond, false},
		"nobody answers for long, nor a refusal": {silent, never, time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newConfirmation()
			c.connect, c.answer = x.connect, x.answer
			ended := make(chan struct{})
			go func() { defer close(ended); c.check(t.Context(), x.review) }()
			if x.waits {
				select {
				case <-c.done:
					t.Fatal("it did not wait for the blocks")
				case <-time.After(200 * time.Millisecond): // it would be over by then
				}
				c.end()
			}
			fair.Eventually(t, 10*time.Second, "the wait ends", fair.True(func() bool {
				select {
				case <-c.done:
					return true
				default:
					return false
				}
			}))
			<-ended
		})
	}
}

// A server that takes a connection and says nothing has the time of an answer, not that of a connection.
func TestConfirmationOfASlowServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := newConfirmation()
	c.connect, c.answer = 100*time.Millisecond, time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.check(ctx, func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.Addr().String(), nil)
			if err != nil {
				return err
			}
			resp, err := http.DefaultClient.Do(req)
			if err == nil {
				_ = resp.Body.Close()
			}
			return err
		})
	}()
	select {
	case <-c.done:
		t.Error("given up after the time of a connection")
	case <-time.After(500 * time.Millisecond):
	}
	cancel()
	<-ended
}
