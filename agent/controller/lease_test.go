package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fakeLease is the one record, with the API server's rules.
type fakeLease struct {
	mu      sync.Mutex
	now     record
	version int
	cut     map[string]bool // identities that reach nobody
}

// of is the store as a process of that identity sees it.
func (f *fakeLease) of(identity string) store { return fakeStore{f, identity} }

type fakeStore struct {
	*fakeLease
	identity string
}

func (f fakeStore) reach(ctx context.Context) error {
	f.mu.Lock()
	cut := f.cut[f.identity]
	f.mu.Unlock()
	if cut {
		<-ctx.Done() // as packets that are dropped
		return ctx.Err()
	}
	return nil
}

func (f fakeStore) read(ctx context.Context) (record, error) {
	if err := f.reach(ctx); err != nil {
		return record{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now.version == "" {
		return record{}, &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound}}
	}
	return f.now, nil
}

func (f fakeStore) write(ctx context.Context, r record) (record, error) {
	if err := f.reach(ctx); err != nil {
		return record{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.version != f.now.version {
		return record{}, &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusConflict, Reason: metav1.StatusReasonConflict}}
	}
	f.version++
	r.version = strconv.Itoa(f.version)
	f.now = r
	return r, nil
}

// current is the record now.
func (f *fakeLease) current() record {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

func (f *fakeLease) sever(identity string, cut bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut[identity] = cut
}

// controllers are processes that want to lead.
type controllers struct {
	t     *testing.T
	lease *fakeLease

	mu      sync.Mutex
	leading map[string]bool
	most    int // at a time
}

func newControllers(t *testing.T) *controllers {
	return &controllers{t: t, lease: &fakeLease{cut: map[string]bool{}}, leading: map[string]bool{}}
}

// run runs one until ctx ends; done is closed then.
func (c *controllers) run(ctx context.Context, identity string) (done chan struct{}) {
	done = make(chan struct{})
	e := &election{store: c.lease.of(identity), identity: identity, log: slog.New(slog.DiscardHandler), leads: func(bool) {}, heard: func() {}}
	go func() {
		defer close(done)
		e.run(ctx, func(ctx context.Context) {
			c.set(identity, true)
			<-ctx.Done()
			c.set(identity, false)
		})
	}()
	return done
}

func (c *controllers) set(identity string, leads bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.leading, identity)
	if leads {
		c.leading[identity] = true
	}
	c.most = max(c.most, len(c.leading))
}

// leader is who leads, "" for nobody.
func (c *controllers) leader() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.leading {
		return name
	}
	return ""
}

// atMost is how many led at a time so far.
func (c *controllers) atMost() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most
}

// One leads; when it ends, the next one does immediately, and when it is cut off, once its Lease has expired. Never do two.
func TestElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newControllers(t)
		ctx, end := context.WithCancel(t.Context())
		defer end()
		stops, done := map[string]context.CancelFunc{}, map[string]chan struct{}{}
		for i := range 3 {
			name := fmt.Sprint("controller-", i)
			one, stop := context.WithCancel(ctx)
			stops[name], done[name] = stop, c.run(one, name)
		}
		time.Sleep(time.Minute)
		first := c.leader()
		if now := c.lease.current(); first == "" || now.holder != first || now.transitions != 0 {
			t.Fatalf("after a minute %q leads, the Lease is %+v", first, now)
		}

		stops[first]()
		<-done[first]
		time.Sleep(retryTime + retryTime/10)
		second := c.leader()
		if second == "" || second == first {
			t.Fatalf("after the leader has ended %q leads", second)
		}

		c.lease.sever(second, true)
		time.Sleep(renewTime + time.Second)
		if who := c.leader(); who == second {
			t.Fatal("the leader continues although it cannot renew its Lease")
		}
		time.Sleep(leaseTime + 3*retryTime - renewTime)
		third := c.leader()
		if third == "" || third == second {
			t.Fatalf("after the leader was cut off %q leads", third)
		}
		c.lease.sever(second, false)
		time.Sleep(time.Minute)
		if who := c.leader(); who != third || c.atMost() != 1 {
			t.Errorf("%q leads, want %q; up to %d led at a time", who, third, c.atMost())
		}
		end()
		for _, d := range done {
			<-d
		}
		if who := c.lease.current().holder; who != "" {
			t.Errorf("%s did not give its Lease back", who)
		}
	})
}

// A leader outlives a short outage of the API.
func TestLeaderOutlivesAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithTimeout(t.Context(), time.Hour)
		defer end()
		store := failing{newControllers(t).lease.of("one"), new(atomic.Int64)}
		e := &election{store: store, identity: "one", log: slog.New(slog.DiscardHandler), leads: func(bool) {}, heard: func() {}}
		if held, err := e.step(ctx, renewTime); !held || err != nil {
			t.Fatalf("held %v, %v", held, err)
		}
		store.left.Store(2) // two renewals are refused, the third one succeeds
		kept := make(chan string, 1)
		go func() { kept <- e.keep(ctx) }()
		time.Sleep(time.Minute)
		select {
		case why := <-kept:
			t.Fatalf("no longer leading: %s", why)
		default:
		}
		store.left.Store(1000)
		if why := <-kept; why != errDown.Error() {
			t.Errorf("ended for %q", why)
		}
	})
}

var errDown = errors.New("the API server is down")

// failing refuses the next reads.
type failing struct {
	store
	left *atomic.Int64
}

func (f failing) read(ctx context.Context) (record, error) {
	if f.left.Add(-1) >= 0 {
		return record{}, errDown
	}
	return f.store.read(ctx)
}
