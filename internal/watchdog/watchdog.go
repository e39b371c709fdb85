// Package watchdog notices loops that hang: they have work and get nothing of it done. It names them, writes all stacks to
// the log, and ends the process, so that whoever supervises it starts it again. The service manager is notified meanwhile
// (sd_notify), so that it notices when this package hangs itself.
//
//	watchdog.go  what is watched, and what follows when a loop hangs
//	judge.go     which loops hang
//	loop.go      what loops mark
//	calls.go     whether the process waits in a call of the kernel that is no fault of its own
//	ends.go      how often the process ended out of order within the last hour
//
// DESIGN.md says what must not count as a hang, and why.
package watchdog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"edgemesh/internal/wake"
)

const (
	// Patience is for how long a loop may have work and get nothing done.
	Patience = 30 * time.Second
	// waitsLong is after how much time that does not count a loop is reported all the same.
	waitsLong = 5 * time.Minute
	// every is between two looks at all loops, closer while one of them makes no progress, and late is how much more a look that is
	// on time may take.
	every  = 2 * time.Second
	closer = time.Second
	late   = 3 * time.Second
	// staleAfter is for how long a watchdog that has not looked may have to look after all.
	staleAfter = 6 * time.Second
	// readyWithin bounds how long the service manager, and with it what is ordered after this process, waits for Ready.
	readyWithin = 20 * time.Second
	// lookTime is how long a look may take before the loop's own state counts as hung.
	lookTime = time.Second
	// reportTime is how long log and memory may take what is known of a hang before the process ends, and how long status and
	// probes have to read it.
	reportTime = time.Second
	// mostEnds within an hour, and the process is not ended again; forgetful is how long one runs before it may be ended
	// that has no memory of that.
	mostEnds = 3
	hour     = time.Hour
	// maxStacks bounds what is written of all stacks, in bytes: some thousand goroutines.
	maxStacks = 4 << 20
	forgetful = hour / mostEnds
)

// Source shows the loops of one part of the program. It is called every few seconds, never concurrently; while a call does not
// return, that part counts as a loop that hangs.
type Source func(show func(Work))

// Config is what a Watchdog needs; all of it may be zero.
type Config struct {
	Log *slog.Logger
	// Block, of tests, is called where a loop begins work, and where a source is looked at.
	Block func(loop string)

	outside
}

// outside is what tests replace.
type outside struct {
	now    func() time.Duration // since the boot, suspended or not
	waits  func() bool          // the process waits in a call of the kernel
	notify func(state string)   // the service manager
	beat   time.Duration        // it wants to hear of us this often, 0: never
	stacks io.Writer
	end    func()
}

// Watchdog watches the loops of one process.
type Watchdog struct {
	cfg     Config
	started time.Duration

	mu       sync.Mutex // a leaf
	sources  []*source
	tasks    []*task // in the order in which they began
	memory   *ends   // nil: there is none
	spared   bool    // report only: the process has ended too often, or is too young for one without memory
	disabled bool    // it has ended too often, so the service manager's watchdog is off
	status   string  // of Ready, "": not yet
	hung     []Hung
	crashed  []Hung    // looking at these crashed
	ending   bool      // the process is about to end
	dumped   bool      // the stacks are in the log
	looked   time.Time // when all loops were looked at last; zero: not yet
	stale    time.Time // when Healthy first found that long ago; zero: it is not
}

// New makes a Watchdog that watches nothing yet.
func New(cfg Config) *Watchdog {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.now == nil {
		cfg.outside = system(cfg.Log)
	}
	return &Watchdog{cfg: cfg, started: cfg.now()}
}

// system is this machine.
func system(log *slog.Logger) outside {
	beat, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("the service manager's watchdog is not used: WATCHDOG_USEC or WATCHDOG_PID cannot be read", "err", err)
	}
	return outside{
		now: sinceBoot, waits: inCalls, beat: beat, stacks: os.Stderr,
		notify: func(state string) {
			if _, err := systemd.SdNotify(false, state); err != nil {
				log.Debug("notify the service manager", "err", err)
			}
		},
		end: func() { os.Exit(1) },
	}
}

// sinceBoot is CLOCK_BOOTTIME: nobody sets it, and it continues while the machine is suspended.
func sinceBoot() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// Watch has a source looked at from now on. The name is the finding's where the source itself hangs.
func (w *Watchdog) Watch(name string, f Source) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sources = append(w.sources, &source{name: name, look: f})
}

// Loop returns a loop whose work is watched.
func (w *Watchdog) Loop(name string) *Loop { return &Loop{name, w} }

// Remember keeps in dir how often the process ended out of order. Call it once no other process uses dir, and the function that
// it returns when this one ends in order.
func (w *Watchdog) Remember(dir string) (inOrder func()) {
	m, err := begin(dir, w.cfg.now())
	if err != nil {
		w.cfg.Log.Warn("how often this process was restarted cannot be remembered, so in its first 20 minutes a loop that hangs is only reported", "err", err)
		return func() {}
	}
	w.mu.Lock()
	w.memory = m
	w.mu.Unlock()
	w.spare()
	return m.inOrder
}

// spare notes whether the process has ended too often to be ended again, by itself or by the service manager.
func (w *Watchdog) spare() {
	w.mu.Lock()
	m := w.memory
	w.mu.Unlock()
	now := w.cfg.now()
	often := m != nil && len(m.recent(now)) >= mostEnds
	w.mu.Lock()
	w.spared = often || m == nil && now-w.started < forgetful
	news := w.disabled != often
	w.disabled = often
	w.mu.Unlock()
	if !news {
		return
	}
	usec := w.cfg.beat.Microseconds()
	if often {
		usec = 0
		w.cfg.Log.Warn("this process was killed or crashed three times within an hour, so for the rest of that a loop that hangs is only reported")
	}
	if w.cfg.beat > 0 {
		w.cfg.notify(fmt.Sprint("WATCHDOG_USEC=", usec))
	}
}

// Ready notifies the service manager that pods can be served, or why that takes longer: what is ordered after this process is
// not to wait for it then. Later calls change what it shows.
func (w *Watchdog) Ready(status string) {
	w.mu.Lock()
	before := w.status
	w.status = status
	w.mu.Unlock()
	switch before {
	case "":
		w.cfg.notify(systemd.SdNotifyReady + "\nSTATUS=" + status)
	case status:
	default:
		w.cfg.notify("STATUS=" + status)
	}
}

func (w *Watchdog) shown() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

// Hung are the loops that hang now, and those that cannot be watched any longer.
func (w *Watchdog) Hung() []Hung {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Concat(w.hung, w.crashed)
}

// Ends are the runs of this program that were ended within the last hour because loops hung, and whether there were too many for
// another one.
func (w *Watchdog) Ends() (all []Hung, spared bool) {
	w.mu.Lock()
	m, spared := w.memory, w.spared
	w.mu.Unlock()
	if m == nil {
		return nil, spared
	}
	now := w.cfg.now()
	for _, r := range m.recent(now) {
		for _, name := range r.Hung {
			all = append(all, Hung{Name: name, Since: time.Now().Add(r.At - now)})
		}
	}
	return all, spared
}

// Healthy says why a supervisor should restart the process: it hangs, and did not end itself. Right after the process or the
// machine was stopped, the next look is still to come: only one that stays away counts.
func (w *Watchdog) Healthy() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.ending:
		return hungError(w.hung)
	case w.looked.IsZero() || time.Since(w.looked) <= Patience || w.spared:
	case w.stale.IsZero():
		w.stale = time.Now()
	case time.Since(w.stale) > staleAfter:
		return errors.New("the watchdog itself hangs")
	}
	return nil
}

func hungError(all []Hung) error {
	var names []string
	for _, h := range all {
		names = append(names, h.Name)
	}
	return fmt.Errorf("no progress for %v: %s", Patience, strings.Join(names, ", "))
}

// Start watches until ctx ends or stop is called.
func (w *Watchdog) Start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { w.run(ctx) })
	return func() { cancel(); running.Wait() }
}

// run watches until ctx ends.
func (w *Watchdog) run(ctx context.Context) {
	tick := time.NewTimer(every)
	defer tick.Stop()
	starting := time.NewTimer(readyWithin)
	defer starting.Stop()
	j := judge{last: w.cfg.now()}
	var beaten time.Duration
	for {
		if now := w.cfg.now(); w.cfg.beat > 0 && now-beaten >= w.cfg.beat/4 && !w.isEnding() {
			w.cfg.notify(systemd.SdNotifyWatchdog)
			beaten = now
		}
		select {
		case <-ctx.Done():
			w.cfg.notify(systemd.SdNotifyStopping)
			return
		case <-starting.C:
			if w.shown() == "" {
				w.Ready("still starting")
			}
		case <-tick.C:
			w.look(ctx, &j)
			tick.Reset(j.next())
		}
	}
}

func (w *Watchdog) isEnding() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ending
}

// look looks at all loops once, and acts on what it sees.
func (w *Watchdog) look(ctx context.Context, j *judge) {
	all := w.Works()
	now := w.cfg.now()
	hung, free := j.look(now, all, w.cfg.waits)
	for _, f := range free {
		go f() // it may hang itself
	}
	w.spare()
	w.mu.Lock()
	w.looked, w.stale = time.Now(), time.Time{}
	before := w.hung
	w.hung = hung
	w.mu.Unlock()
	switch {
	case len(hung) > 0:
		w.act(ctx, now, hung, len(hung) > len(before))
	case len(before) > 0:
		w.cfg.Log.Info("the loops that hung make progress again")
		w.cfg.notify("STATUS=" + w.shown())
	}
}

// act reports loops that hang, and ends the process unless that happened too often.
func (w *Watchdog) act(ctx context.Context, now time.Duration, hung []Hung, news bool) {
	w.mu.Lock()
	w.ending = !w.spared && slices.ContainsFunc(hung, func(h Hung) bool { return h.Why == "" })
	end, memory, dump := w.ending, w.memory, w.ending || !w.dumped
	w.dumped = true
	w.mu.Unlock()
	if !end && !news {
		return
	}
	kept := make(chan error, 1)
	go func() { // neither disk nor log may stop what follows
		var err error
		if end && memory != nil {
			err = memory.hung(now, hung)
		}
		kept <- err
		w.cfg.Log.Error("loops hang: they have work and make no progress", "loops", hungError(hung), "since", hung[0].Since.Format(time.RFC3339), "restart", end, "why", hung[0].Why)
		if dump {
			stacks := make([]byte, maxStacks)
			_, _ = w.cfg.stacks.Write(stacks[:runtime.Stack(stacks, true)])
		}
	}()
	if !end {
		return
	}
	w.cfg.notify("STATUS=" + hungError(hung).Error())
	if !wake.Sleep(ctx, reportTime) {
		return // it ends anyway
	}
	var err error
	select {
	case err = <-kept:
	default:
		err = errors.New("the disk does not answer")
	}
	if err == nil {
		w.cfg.end()
		return
	}
	w.mu.Lock()
	w.ending, w.memory = false, nil
	w.mu.Unlock()
	w.cfg.Log.Error("this restart cannot be remembered, so it waits until the process has run for 20 minutes", "err", err)
}

// source is a part of the program that shows its loops. It belongs to Watchdog.mu.
type source struct {
	name string
	look Source
	busy bool   // a look is under way; a task stands for it
	last []Work // what the last look saw
}

// Works is where all loops stand. It looks at all sources at the same time, for lookTime at most.
func (w *Watchdog) Works() (all []Work) {
	var looks sync.WaitGroup
	w.mu.Lock()
	for _, s := range w.sources {
		if !s.busy {
			s.busy = true
			looks.Go(func() { w.lookAt(s) })
		}
	}
	w.mu.Unlock()
	done := make(chan struct{})
	go func() { looks.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(lookTime):
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sources {
		if !s.busy {
			all = append(all, s.last...)
		}
	}
	for _, t := range w.tasks {
		all = append(all, Work{Name: t.name, Busy: t.outside.Load() == 0, Steps: t.steps.Load(), task: t})
	}
	return all
}

// lookAt looks at one source, and never again after it has crashed.
func (w *Watchdog) lookAt(s *source) {
	defer w.end(w.begin(s.name))
	var all []Work
	crash := func() (crash any) {
		defer func() { crash = recover() }()
		s.look(func(x Work) { all = append(all, x) })
		return nil
	}()
	if crash != nil {
		w.cfg.Log.Error("a loop is not watched any longer: looking at it crashed", "loop", s.name, "err", crash, "stack", string(debug.Stack()))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s.busy, s.last = false, all
	if crash != nil {
		w.sources = slices.DeleteFunc(w.sources, func(o *source) bool { return o == s })
		w.crashed = append(w.crashed, Hung{s.name, time.Now(), "looking at it crashed, so it is not watched any longer"})
	}
}
