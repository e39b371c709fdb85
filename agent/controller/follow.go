package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/wake"
)

const (
	// watchSeconds is how long one watch runs, and listEvery after how long everything is listed again.
	watchSeconds = 300
	listEvery    = time.Hour
	// sweepAgain is when a round is repeated that failed.
	sweepAgain = time.Second
	// gather is how long changes are collected that are no hurry.
	gather = 200 * time.Millisecond
	// workers bounds the requests of one round at a time.
	workers = 16

	minBackoff = 200 * time.Millisecond
	maxBackoff = 4 * time.Second
)

// cluster is what the parts of a controller need of the API.
type cluster interface {
	List(ctx context.Context, k api.Kind, trim func(api.Object)) ([]api.Object, string, error)
	Watch(ctx context.Context, k api.Kind, rv string, timeout int, trim func(api.Object)) (*client.Stream, error)
	Get(ctx context.Context, path string, out any) error
	Create(ctx context.Context, path string, in, out any) error
	Patch(ctx context.Context, path, contentType string, query url.Values, in, out any) error
	Remove(ctx context.Context, path, uid string) error
}

var _ cluster = (*client.Client)(nil)

// removed deletes an object, unless another one has its name by now, which is heard of. One that is gone is no error.
func removed(ctx context.Context, c cluster, path, uid string) error {
	err := c.Remove(ctx, path, uid)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// news is what the API has said of a kind: all of it, one change, or why it cannot be followed now.
type news struct {
	kind  api.Kind
	all   bool // list is all there is
	list  []api.Object
	event client.Event
	err   error
}

// follow lists and watches a kind, again and again, until ctx ends. What it hears goes to out.
func follow(ctx context.Context, c cluster, k api.Kind, trim func(api.Object), out chan<- news) {
	wait := minBackoff
	send := func(n news) bool {
		n.kind = k
		select {
		case out <- n:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for ctx.Err() == nil {
		began := time.Now()
		err := watch(ctx, c, k, trim, send)
		if ctx.Err() != nil {
			return
		}
		if err == nil || time.Since(began) > maxBackoff {
			wait = minBackoff
		}
		if err != nil {
			// The storage of a kind that was made a moment ago is "(re)initializing" (429): an error once that lasts, after 3 s.
			if !apierrors.IsTooManyRequests(err) || wait == maxBackoff {
				send(news{err: err})
			}
			wake.Sleep(ctx, wait)
			wait = min(2*wait, maxBackoff)
		}
	}
}

// watch lists, and watches until the server ends that; nil if that was as agreed.
func watch(ctx context.Context, c cluster, k api.Kind, trim func(api.Object), send func(news) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	items, rv, err := c.List(ctx, k, trim)
	if err != nil {
		return err
	}
	if !send(news{all: true, list: items}) {
		return ctx.Err()
	}
	for listed := time.Now(); time.Since(listed) < listEvery; {
		began := time.Now()
		err := receive(ctx, c, k, &rv, trim, send)
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || err == nil && time.Since(began) < time.Second {
			return nil // only a list helps
		}
		if err != nil {
			return fmt.Errorf("watch %s: %w", k.Name, err)
		}
	}
	return nil
}

// receive watches from rv, which it keeps up to date, until the server ends that.
func receive(ctx context.Context, c cluster, k api.Kind, rv *string, trim func(api.Object), send func(news) bool) error {
	stream, err := c.Watch(ctx, k, *rv, watchSeconds, trim)
	if err != nil {
		return err
	}
	defer stream.Close()
	for {
		e, err := stream.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		*rv = e.Object.Metadata().ResourceVersion
		if e.What != client.Bookmark && !send(news{event: e}) {
			return ctx.Err()
		}
	}
}
