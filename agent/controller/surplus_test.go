package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/kube/kubetest"
	"edgemesh/test/fair"
)

// fakeAPI answers what a sweep asks.
type fakeAPI struct {
	cluster
	network error // instead of the PodNetwork
	ranges  []string
	refuse  map[string]error

	mu      sync.Mutex
	removed []string
}

func (f *fakeAPI) Get(_ context.Context, _ string, out any) error {
	if n, ok := out.(*api.PodNetwork); ok && f.network == nil {
		*n = *kubetest.PodNetwork(f.ranges...)
	}
	return f.network
}

func (f *fakeAPI) Remove(_ context.Context, path, uid string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := strings.TrimPrefix(path, api.PodBlocks().Path("")+"/")
	f.removed = append(f.removed, name+" "+uid)
	return f.refuse[name]
}

// took are the names that were removed since the last call, sorted.
func (f *fakeAPI) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.removed
	f.removed = nil
	slices.Sort(out)
	return out
}

func newSurplus(f cluster) *surplus {
	return &surplus{api: f, log: slog.New(slog.DiscardHandler), metrics: newMetrics(nil),
		nodes: map[string]map[string]*api.PodBlock{}, dirty: map[string]bool{}}
}

func claim(cidr, node string, second int) *api.PodBlock {
	b := kubetest.PodBlock(cidr, node)
	b.Meta.CreationTimestamp = kubetest.At(second)
	return b
}

// A sweep deletes what does not count, exactly that object, and nothing of other nodes; what it could not delete it
// tries again.
func TestSweep(t *testing.T) {
	gone := &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound}}
	f := &fakeAPI{ranges: []string{"10.244.0.0/16", "fd00::/48"}, refuse: map[string]error{"10-244-13-0-24": errors.New("etcd is slow"), "10-244-12-0-24": gone}}
	s := newSurplus(f)
	see := func(what string, b *api.PodBlock) { s.take(client.Event{What: what, Object: b}) }
	for i := range 4 {
		see(client.Added, claim(fmt.Sprintf("10.244.%d.0/24", 10+i), "hoarder", i))
	}
	see(client.Added, claim("fd00:0:0:1::/64", "hoarder", 9))
	see(client.Added, claim("10.244.1.0/24", "honest", 5))
	see(client.Added, claim("fd00:0:0:2::/64", "honest", 5))
	see(client.Added, claim("10.244.2.0/24", "honest", 6))
	see(client.Bookmark, &api.PodBlock{})

	f.network = errors.New("no PodNetwork")
	if err := s.sweep(t.Context()); err == nil || len(f.took()) > 0 {
		t.Fatalf("without a PodNetwork: %v, removed %v", err, f.removed)
	}
	f.network = nil
	if err := s.sweep(t.Context()); err == nil || !strings.Contains(err.Error(), "10-244-13-0-24 of node hoarder: etcd is slow") {
		t.Errorf("error %v", err)
	}
	want := []string{"10-244-12-0-24 b-10.244.12.0/24", "10-244-13-0-24 b-10.244.13.0/24"}
	if got := f.took(); !slices.Equal(got, want) {
		t.Errorf("removed %v, want %v", got, want)
	}
	f.refuse = nil
	if err := s.sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if got := f.took(); !slices.Equal(got, want[1:]) {
		t.Errorf("in the second sweep removed %v, want %v", got, want[1:])
	}
	if err := s.sweep(t.Context()); err != nil || len(f.took()) > 0 {
		t.Errorf("when all is well: %v, removed %v", err, f.removed)
	}
	// What the node gives back counts no longer, so the third one does.
	see(client.Deleted, claim("10.244.10.0/24", "hoarder", 0))
	see(client.Added, claim("10.244.14.0/24", "hoarder", 20))
	if err := s.sweep(t.Context()); err != nil || len(f.took()) > 0 {
		t.Errorf("after one was given back: %v, removed %v", err, f.removed)
	}
	// API servers before 1.31 accept a PodNetwork that is wrong. All blocks are outside it, but the one before is in force.
	for i, network := range [][]string{{"10.9.0.0/16", "10.9.1.0/24"}, {"10.9.1.0/16"}} {
		f.ranges = network
		see(client.Added, claim("192.168.0.0/24", "honest", i+1))
		see(client.Added, claim("10.244.3.0/24", "honest", 7))
		want := []string{"10-244-3-0-24 b-10.244.3.0/24"}
		if err := s.sweep(t.Context()); err != nil || !slices.Equal(f.took(), want) {
			t.Errorf("a wrong PodNetwork: %v, removed %v, want %v", err, f.removed, want)
		}
		if _, err := newSurplus(f).ranges(t.Context()); err == nil {
			t.Error("a wrong PodNetwork is taken after a start")
		}
	}
}

// The surplus is found in the list and in what the watch tells, and again after the watch has broken off.
func TestFollow(t *testing.T) {
	var mu sync.Mutex
	blocks, removed := []*api.PodBlock{claim("10.244.1.0/24", "a", 1), claim("10.244.2.0/24", "a", 2), claim("10.244.3.0/24", "a", 3)}, map[string]bool{}
	added := make(chan *api.PodBlock)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+api.PodNetworks().Path("cluster"), func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, kubetest.JSON(t, kubetest.PodNetwork("10.244.0.0/16")))
	})
	mux.HandleFunc("GET "+api.PodBlocks().Path(""), func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprint(w, kubetest.JSON(t, map[string]any{"kind": "PodBlockList", "metadata": map[string]string{"resourceVersion": "9"},
				"items": slices.DeleteFunc(slices.Clone(blocks), func(b *api.PodBlock) bool { return removed[b.Meta.Name] })}))
			return
		}
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		for {
			select {
			case <-r.Context().Done():
				return
			case b := <-added:
				if b == nil {
					return
				}
				fmt.Fprint(w, kubetest.JSON(t, map[string]any{"type": "ADDED", "object": b}))
				w.(http.Flusher).Flush()
			}
		}
	})
	mux.HandleFunc("DELETE "+api.PodBlocks().Path("")+"/{name}", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		removed[r.PathValue("name")] = true
		fmt.Fprint(w, "{}")
	})
	c, err := client.New(client.Access{Server: kubetest.Serve(t, mux), LocalUID: os.Geteuid()}, "test/1", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		newSurplus(c).run(ctx)
	}()
	defer func() { end(); <-done }()
	is := func(what string, names ...string) {
		t.Helper()
		fair.Eventually(t, time.Minute, what, fair.True(func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(removed) == len(names) && !slices.ContainsFunc(names, func(n string) bool { return !removed[n] })
		}))
	}
	is("of the list", "10-244-3-0-24")
	added <- claim("10.244.4.0/24", "a", 4)
	is("of the watch", "10-244-3-0-24", "10-244-4-0-24")
	mu.Lock()
	blocks = append(blocks, claim("10.244.5.0/24", "a", 5))
	mu.Unlock()
	added <- nil // the watch ends
	is("after the watch", "10-244-3-0-24", "10-244-4-0-24", "10-244-5-0-24")
}
