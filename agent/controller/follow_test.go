package controller

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
)

// newKind is an API with a kind that was made a moment ago.
type newKind struct {
	cluster
	ready time.Time
}

func (f *newKind) List(context.Context, api.Kind, func(api.Object)) ([]api.Object, string, error) {
	if time.Now().Before(f.ready) {
		return nil, "", apierrors.NewTooManyRequests("storage is (re)initializing", 1)
	}
	return nil, "1", nil
}

func (f *newKind) Watch(ctx context.Context, _ api.Kind, _ string, _ int, _ func(api.Object)) (*client.Stream, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A kind that is about to be served is no error, unless that takes long.
func TestNewKind(t *testing.T) {
	for d, want := range map[time.Duration]bool{2 * time.Second: false, time.Minute: true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			out := make(chan news)
			go func() {
				defer close(out)
				follow(ctx, &newKind{ready: time.Now().Add(d)}, api.NodeRecords(), nil, out)
			}()
			failed, listed := false, false
			for n := range out {
				failed, listed = failed || n.err != nil, listed || n.all
			}
			if failed != want || !listed {
				t.Errorf("ready after %v: an error %v, listed %v", d, failed, listed)
			}
		})
	}
}
