package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"edgemesh/internal/config"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/kubetest"
)

// heard is a log handler that reports its first record.
type heard struct {
	slog.Handler
	first chan struct{}
}

func (h heard) Handle(context.Context, slog.Record) error {
	close(h.first) // a second record would panic: it is reported once
	return nil
}

func (h heard) Enabled(context.Context, slog.Level) bool { return true }

func TestOneAgentPerStateDirectory(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := t.TempDir()
	first, err := LockStateDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LockStateDir(dir); !errors.Is(err, ErrLocked) {
		t.Fatalf("a second one: %v", err)
	}

	// One that waits stands by, says so once, and has the lock when the first ends.
	log := heard{slog.DiscardHandler, make(chan struct{})}
	got := make(chan error, 1)
	go func() {
		second, err := WaitStateDir(t.Context(), dir, func() {}, slog.New(log))
		if err == nil {
			defer second.Release()
			if _, e := LockStateDir(dir); !errors.Is(e, ErrLocked) {
				err = errors.Join(errors.New("it does not hold the lock"), e)
			}
		}
		got <- err
	}()
	<-log.first
	select {
	case err := <-got:
		t.Fatalf("it did not stand by: %v", err)
	default:
	}
	first.Release()
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func TestStandingByCanBeEnded(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := t.TempDir()
	first, err := LockStateDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Release()
	ctx, cancel := context.WithCancel(t.Context())
	log := heard{slog.DiscardHandler, make(chan struct{})}
	got := make(chan error, 1)
	go func() {
		_, err := WaitStateDir(ctx, dir, func() {}, slog.New(log))
		got <- err
	}()
	<-log.first
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// well is the health of a process that does not hang.
func well() error { return nil }

// fit is a check that finds nothing.
func fit(context.Context, config.Config) error { return nil }

// What could not take over does not wait to do so: a rolling update would end the
// agent that works.
func TestUnfitDoesNotStandBy(t *testing.T) {
	dir := t.TempDir()
	first, err := LockStateDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Release()
	unfit := errors.New("no plugin")
	check := func(context.Context, config.Config) error { return unfit }
	if _, err := standBy(t.Context(), config.Config{StateDir: dir}, check, well, &heldTUN{}, Options{Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, unfit) {
		t.Errorf("beside another agent: %v", err)
	}
	// Where none runs it starts, and says itself what it lacks.
	lock, err := standBy(t.Context(), config.Config{StateDir: t.TempDir()}, check, well, &heldTUN{}, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatalf("alone: %v", err)
	}
	lock.Release()
}

// With an address of its own, the one that stands by answers its probes itself,
// and gives the address free for the metrics.
func TestProbesAreAnsweredWhileStandingBy(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := t.TempDir()
	first, err := LockStateDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	log := heard{slog.DiscardHandler, make(chan struct{})}
	got := make(chan error, 1)
	go func() {
		second, err := standBy(t.Context(), config.Config{StateDir: dir, MetricsAddress: address}, fit, well, &heldTUN{}, Options{Log: slog.New(log)})
		if err == nil {
			second.Release()
		}
		got <- err
	}()
	<-log.first
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + address + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status %d", resp.StatusCode)
	}
	first.Release()
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if l, err = net.Listen("tcp", address); err != nil {
		t.Fatalf("the address is not free: %v", err)
	}
	l.Close()
}

// What stands by leaves the agent that works in place while upgraded agents of its revision crash: from the start, and when
// it learns so later. An API that cannot be reached stops nothing, nor does another revision.
func TestStoppedRollout(t *testing.T) {
	failing := func(revision string) string {
		return kubetest.JSON(t, api.PodNetwork{Status: api.PodNetworkStatus{Failing: []api.FailingAgents{{Revision: revision, Node: "edge-7", Message: "exit code 1: no"}}}})
	}
	var answer atomic.Pointer[string]
	say := func(s string) { answer.Store(&s) }
	checked := make(chan struct{}, 100)
	server := kubetest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kubetest.Answers{"GET " + api.PodNetworks().Path(api.NetworkName): *answer.Load()}.ServeHTTP(w, r)
		checked <- struct{}{}
	}))
	dir := t.TempDir()
	first, err := LockStateDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	cfg := config.Config{StateDir: dir, Membership: config.Membership{Kubernetes: &config.Kubernetes{Server: server}}}
	o := Options{Revision: "b", Log: slog.New(slog.DiscardHandler)}

	say(failing("b"))
	if _, err := standBy(t.Context(), cfg, fit, well, &heldTUN{}, o); !errors.Is(err, kube.ErrRolloutStopped) || !strings.Contains(err.Error(), "edge-7") {
		t.Fatalf("at the start: %v", err)
	}
	<-checked
	for name, text := range map[string]string{"another revision": failing("a"), "no API": "{"} {
		say(text)
		ctx, end := context.WithCancel(t.Context())
		got := make(chan error, 1)
		go func() { _, err := standBy(ctx, cfg, fit, well, &heldTUN{}, o); got <- err }()
		<-checked // at the start
		<-checked // while it stands by
		end()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	say(failing("a"))
	got := make(chan error, 1)
	go func() { _, err := standBy(t.Context(), cfg, fit, well, &heldTUN{}, o); got <- err }()
	<-checked
	say(failing("b"))
	if err := <-got; !errors.Is(err, kube.ErrRolloutStopped) {
		t.Errorf("later: %v", err)
	}
	say(failing("b"))
	first.Release()
	if lock, err := standBy(t.Context(), cfg, fit, well, &heldTUN{}, o); err != nil {
		t.Errorf("where none runs now: %v", err)
	} else {
		lock.Release()
	}
}
