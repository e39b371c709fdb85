package controller

import (
	"context"
	"net/url"

	"edgemesh/internal/watchdog"
)

// watched is the API as loops use it that are watched: while a request is under way, its loop waits for another machine.
type watched struct{ cluster }

func (w watched) Get(ctx context.Context, path string, out any) error {
	defer watchdog.Outside(ctx)()
	return w.cluster.Get(ctx, path, out)
}

func (w watched) Create(ctx context.Context, path string, in, out any) error {
	defer watchdog.Outside(ctx)()
	return w.cluster.Create(ctx, path, in, out)
}

func (w watched) Patch(ctx context.Context, path, contentType string, query url.Values, in, out any) error {
	defer watchdog.Outside(ctx)()
	return w.cluster.Patch(ctx, path, contentType, query, in, out)
}

func (w watched) Remove(ctx context.Context, path, uid string) error {
	defer watchdog.Outside(ctx)()
	return w.cluster.Remove(ctx, path, uid)
}
