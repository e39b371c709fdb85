package controller

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/wake"
	"edgemesh/internal/watchdog"
)

const (
	leaseName = "edgemesh-controller"
	// leaseTime is how long the others wait for a leader that is silent. After a crash there
	// is none for leaseTime and about twice retryTime: one until the others see the last
	// renewal, and one until they try.
	leaseTime = 4 * time.Second
	// renewTime is how long a leader continues that cannot renew the Lease: it has stopped
	// before another one begins.
	renewTime = 3 * time.Second
	// retryTime is between two tries to get the Lease, and between two renewals; retrySoon
	// after a renewal that failed.
	retryTime = time.Second
	retrySoon = 500 * time.Millisecond
)

// record is the Lease, as far as it is used.
type record struct {
	version     string // resource version, "" of one that does not exist
	holder      string // identity of the leader, "" for none
	duration    time.Duration
	acquired    time.Time
	transitions int // how often the leader has changed
}

// store holds the record. A write fails with a conflict if the record changed since it was
// read.
type store interface {
	read(ctx context.Context) (record, error)
	write(ctx context.Context, r record) (record, error)
}

// election makes one of several processes the leader. It follows client-go's leaderelection:
// a Lease counts as held until it has not changed for its duration by this process's own
// clock, so that clocks need not agree. All of it belongs to the goroutine in run.
type election struct {
	store    store
	identity string
	log      *slog.Logger
	loop     *watchdog.Loop
	leads    func(bool) // called when this process begins or ends to lead
	heard    func()     // called when the API has answered

	seen    record    // as last read or written
	since   time.Time // when it was first seen like that
	renewed time.Time // when the step began that got or renewed the Lease last
	logged  string    // what was logged last: the leader, or why there is none
}

// run calls lead whenever this process is the leader, until ctx ends. lead returns when
// its context ends, which is when the Lease is lost.
func (e *election) run(ctx context.Context, lead func(context.Context)) {
	work, end := e.loop.Begin(ctx) // it always has work: the Lease
	defer end()
	for ctx.Err() == nil {
		if held, err := e.step(work, renewTime); held {
			e.reign(ctx, work, lead)
		} else if err != nil {
			e.logOnce(slog.LevelWarn, "unreachable", "cannot take part in the election of a leader: nothing is done if no other controller leads; retrying", "err", err)
		} else if e.seen.holder != "" {
			e.logOnce(slog.LevelInfo, e.seen.holder, "another controller leads: waiting", "leader", e.seen.holder)
		}
		wake.Sleep(ctx, retryTime+rand.N(retryTime/10))
	}
}

// reign runs lead for as long as the Lease is held, and gives it back when ctx ends. What lead does is not this loop's work.
func (e *election) reign(ctx, work context.Context, lead func(context.Context)) {
	reign, end := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		lead(reign)
	}()
	e.logOnce(slog.LevelInfo, e.identity, "leading", "identity", e.identity)
	e.leads(true)
	why := e.keep(work)
	end()
	<-done
	e.leads(false)
	if ctx.Err() != nil {
		e.release(context.WithoutCancel(ctx))
		return
	}
	e.logOnce(slog.LevelWarn, "lost", "no longer leading", "reason", why)
}

// keep renews the Lease until that fails for too long, another process has it, or ctx ends.
func (e *election) keep(ctx context.Context) (why string) {
	for wait := retryTime; wake.Sleep(ctx, wait); {
		left := renewTime - time.Since(e.renewed)
		if left <= 0 {
			return why
		}
		held, err := e.step(ctx, left)
		switch {
		case held:
			wait, why = retryTime, ""
		case err == nil:
			return "another controller has the Lease: " + e.seen.holder
		default:
			wait, why = retrySoon, err.Error()
		}
	}
	return ""
}

// step gets the Lease, or renews it, if nobody else holds it. Without an error it reports
// whether this process leads now.
func (e *election) step(ctx context.Context, limit time.Duration) (bool, error) {
	watchdog.Step(ctx)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	now, err := e.store.read(ctx)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	e.heard()
	e.note(now)
	if now.holder != "" && now.holder != e.identity && time.Since(e.since) < now.duration {
		return false, nil
	}
	next := record{version: now.version, holder: e.identity, duration: leaseTime, acquired: now.acquired, transitions: now.transitions}
	if now.holder != e.identity {
		next.acquired = time.Now()
		if now.version != "" {
			next.transitions++
		}
	}
	got, err := e.store.write(ctx, next)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return false, nil // another one was faster
	}
	if err != nil {
		return false, err
	}
	e.note(got)
	e.renewed = began
	return true, nil
}

// note remembers when the record changed.
func (e *election) note(r record) {
	if r.version != e.seen.version || e.since.IsZero() {
		e.since = time.Now()
	}
	e.seen = r
}

// release gives the Lease back, so that the next leader need not wait.
func (e *election) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, retryTime)
	defer cancel()
	free := e.seen
	free.holder, free.duration = "", time.Second
	if _, err := e.store.write(ctx, free); err != nil {
		e.log.Info("could not give the Lease back: the next leader begins when it has expired", "err", err)
	}
}

// logOnce logs the state when it changes.
func (e *election) logOnce(level slog.Level, what, message string, args ...any) {
	if what != e.logged {
		e.logged = what
		e.log.Log(context.Background(), level, message, args...)
	}
}

// leases keeps the record in a Lease of the API.
type leases struct {
	c         *client.Client
	namespace string
	members   atomic.Value // string: the digest of the membership as the leader has it, "" if it is not known
}

var _ store = (*leases)(nil)

// microTime is metav1.MicroTime's form.
const microTime = "2006-01-02T15:04:05.000000Z07:00"

func (l *leases) read(ctx context.Context) (record, error) {
	var got api.Lease
	if err := l.c.Get(ctx, api.LeasePath(l.namespace, leaseName), &got); err != nil {
		return record{}, err
	}
	return recordOf(got), nil
}

func (l *leases) write(ctx context.Context, r record) (record, error) {
	digest := l.digest()
	if digest != "" { // of this holder alone: one of a release before leaves the annotation as it is
		digest = r.holder + " " + digest
	}
	in := api.Lease{
		Meta: api.Meta{Name: leaseName, ResourceVersion: r.version, Annotations: map[string]string{api.MembersAnnotation: digest}},
		Spec: api.LeaseSpec{
			HolderIdentity: r.holder, LeaseDurationSeconds: int(r.duration / time.Second), LeaseTransitions: r.transitions,
			AcquireTime: r.acquired.UTC().Format(microTime), RenewTime: time.Now().UTC().Format(microTime),
		},
	}
	var got api.Lease
	var err error
	if r.version == "" {
		in.Type = api.Type{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
		err = l.c.Create(ctx, api.LeasePath(l.namespace, ""), in, &got)
	} else {
		err = l.c.Patch(ctx, api.LeasePath(l.namespace, leaseName), client.Merge, nil, in, &got) // with the version: a conflict if it changed
	}
	if err != nil {
		return record{}, err
	}
	return recordOf(got), nil
}

func (l *leases) digest() string {
	text, _ := l.members.Load().(string)
	return text
}

func recordOf(l api.Lease) record {
	acquired, err := time.Parse(microTime, l.Spec.AcquireTime)
	if err != nil {
		acquired = time.Time{}
	}
	return record{
		version: l.Meta.ResourceVersion, holder: l.Spec.HolderIdentity, transitions: l.Spec.LeaseTransitions, acquired: acquired,
		duration: cmp.Or(time.Duration(l.Spec.LeaseDurationSeconds)*time.Second, leaseTime),
	}
}
