package controller

import (
	"context"
	"net/url"

	"edgemesh/internal/watchdog"
)

// loops are those that are watched while this controller leads.
type loops struct{ surplus, records, rollouts, sight, journal *watchdog.Loop }

// watched is the API as a loop uses it that is watched: while a request is under way, the loop waits for another machine.
type watched struct {
	cluster
	loop *watchdog.Loop
}

func (w watched) Get(ctx context.Context, path string, out any) error {
	defer w.loop.Outside()()
	return w.cluster.Get(ctx, path, out)
}

func (w watched) Create(ctx context.Context, path string, in, out any) error {
	defer w.loop.Outside()()
	return w.cluster.Create(ctx, path, in, out)
}

func (w watched) Patch(ctx context.Context, path, contentType string, query url.Values, in, out any) error {
	defer w.loop.Outside()()
	return w.cluster.Patch(ctx, path, contentType, query, in, out)
}

func (w watched) Remove(ctx context.Context, path, uid string) error {
	defer w.loop.Outside()()
	return w.cluster.Remove(ctx, path, uid)
}
