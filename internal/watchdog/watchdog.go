// Package watchdog notices loops that hang: they have work and get nothing of it done. It names them, writes all stacks to
// the log, and ends the process, so that whoever supervises it starts it again. The service manager is notified meanwhile
// (sd_notify), so that it notices when this package hangs itself.
//
//	loop.go      what loops mark
//	watchdog.go  which loops hang, and what follows
//	calls.go     whether the process waits in a call of the kernel that is no fault of its own
//
// DESIGN.md says what must not count as a hang, and why.
package watchdog

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"

	"edgemesh/internal/durable"
	"edgemesh/internal/wake"
)

const (
	// Patience is for how long a loop may have work and get nothing done.
	Patience = 30 * time.Second
	// longWait is for how long calls of the kernel excuse a loop before it is named.
	longWait = 5 * time.Minute
	// File, in the directory that Remember is given, has the restarts of the last hour.
	File = "watchdog.json"
	// every is between two looks at all loops, and late is how much more a look that is on time may take.
	every = time.Second
	late  = 3 * time.Second
	// readyWithin bounds how long the service manager, and with it what is ordered after this process, waits for Ready.
	readyWithin = 20 * time.Second
	// reportTime is how long log and File may take what is known of a hang before the process ends, and how long status and
	// probes have to read it.
	reportTime = time.Second
	// mostRestarts within an hour, and the process is not ended again. One that cannot be noted comes no earlier than hour/mostRestarts
	// after the start.
	mostRestarts = 3
	hour         = time.Hour
	// maxStacks bounds what is written of all stacks, in bytes: some thousand goroutines.
	maxStacks = 4 << 20
)

// Config is what a Watchdog needs; all of it may be zero.
type Config struct {
	Log *slog.Logger
	// Block, of tests, is called where a loop begins work, and where a source is looked at.
	Block func(loop string)
}

// Watchdog watches the loops of one process.
type Watchdog struct {
	cfg     Config
	began   time.Time
	status  atomic.Pointer[string] // of Ready, nil: not yet
	marks   map[any]*mark          // of the loops that had work at the last look
	clock   time.Duration          // of the time that counts
	said    bool                   // the loops that hang are in the log
	unnoted atomic.Bool            // the restart for them is not in File, or not yet

	mu       sync.Mutex // a leaf
	sources  []*source
	tasks    []*task // in the order in which they began
	hung     []Hung
	path     string // of File, "": restarts are not remembered
	restarts []Restart

	// What tests replace.
	waits  func() bool
	notify func(state string)
	stacks io.Writer
	end    func()
	write  func(path string, data []byte, mode os.FileMode) error
}

// mark is a loop's last progress.
type mark struct {
	steps uint64
	at    time.Duration // by the clock that counts
	since time.Time
	freed bool
}

// Hung is a loop that hangs.
type Hung struct {
	Name  string
	Since time.Time // its last progress, within some seconds
	Waits bool      // calls of the kernel excuse it, for longWait by now: the process does not end for it
}

// Restart is one for loops that hung.
type Restart struct {
	At    time.Time `json:"at"`
	Loops []string  `json:"loops"`
}

// New makes a Watchdog that watches nothing yet.
func New(cfg Config) *Watchdog {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Watchdog{cfg: cfg, began: time.Now(), waits: inCalls, notify: func(state string) { _, _ = systemd.SdNotify(false, state) }, stacks: os.Stderr, end: func() { os.Exit(1) }, write: durable.WriteFile}
}

// Remember keeps in dir how often the process was restarted. Call it once no other process uses dir.
func (w *Watchdog) Remember(dir string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.path = filepath.Join(dir, File)
	if text, err := os.ReadFile(w.path); err == nil {
		_ = json.Unmarshal(text, &w.restarts) // torn by a power-cut: no restart that counts
	}
}

// Restarts are those of the last hour.
func (w *Watchdog) Restarts() []Restart {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.restarts), func(r Restart) bool { ago := time.Since(r.At); return ago < 0 || ago >= hour })
}

// Hung are the loops that hang now.
func (w *Watchdog) Hung() []Hung {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hung
}

// accused are those of them that nothing excuses.
func (w *Watchdog) accused() []Hung {
	return slices.DeleteFunc(slices.Clone(w.Hung()), func(h Hung) bool { return h.Waits })
}

// Healthy says why a supervisor should restart the process: it hangs, and could not end itself.
func (w *Watchdog) Healthy() error {
	if hung := w.accused(); len(hung) > 0 && w.ends() {
		return hungError(hung)
	}
	return nil
}

// ends reports whether a loop that hangs ends the process.
func (w *Watchdog) ends() bool {
	return len(w.Restarts()) < mostRestarts && (!w.unnoted.Load() || time.Since(w.began) >= hour/mostRestarts)
}

func hungError(hung []Hung) error {
	return fmt.Errorf("no progress for %v: %s", Patience, strings.Join(names(hung), ", "))
}

func names(hung []Hung) (all []string) {
	for _, h := range hung {
		all = append(all, h.Name)
	}
	return all
}

// Ready notifies the service manager that pods can be served, or why that takes longer: what is ordered after this process is
// not to wait for it then. Later calls change what it shows.
func (w *Watchdog) Ready(status string) {
	if before := w.status.Swap(&status); before == nil || *before != status {
		w.notify(systemd.SdNotifyReady + "\nSTATUS=" + status)
	}
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
	beat, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		w.cfg.Log.Warn("the service manager's watchdog is not used: WATCHDOG_USEC or WATCHDOG_PID cannot be read", "err", err)
	}
	var beaten time.Time
	for last := w.began; ; {
		now := time.Now()
		if beat > 0 && now.Sub(beaten) >= beat/4 {
			w.notify(systemd.SdNotifyWatchdog)
			beaten = now
		}
		if now.Sub(w.began) >= readyWithin && w.status.Load() == nil {
			w.Ready("still starting")
		}
		w.look(now.Sub(last))
		w.act(ctx, w.accused())
		last = now
		if !wake.Sleep(ctx, every) {
			w.notify(systemd.SdNotifyStopping)
			return
		}
	}
}

// look notes which loops hang. Time counts only while looks are on time, and while no thread waits in a call of the kernel: a
// machine that was suspended, a process that was stopped and one that got no processor accuse nobody.
func (w *Watchdog) look(passed time.Duration) {
	all := w.works()
	stalled := func(x Work) bool { m := w.marks[x.key]; return m != nil && m.steps == x.Steps }
	if slices.ContainsFunc(all, stalled) && !w.waits() {
		w.clock += passed
	}
	marks := make(map[any]*mark, len(all))
	var hung []Hung
	for _, x := range all {
		m := w.marks[x.key]
		if !stalled(x) || passed > every+late {
			m = &mark{steps: x.Steps, at: w.clock, since: time.Now()}
		}
		marks[x.key] = m
		stood := w.clock - m.at
		if stood >= Patience/2 && x.Free != nil && !m.freed {
			m.freed = true
			go x.Free() // it may hang itself
		}
		hangs := stood > Patience-every/2 // looks do not come to the microsecond
		if (hangs || time.Since(m.since) >= longWait) && !slices.ContainsFunc(hung, func(o Hung) bool { return o.Name == x.Name && o.Waits != hangs }) {
			hung = append(hung, Hung{x.Name, m.since, !hangs})
		}
	}
	w.marks = marks
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hung = hung
}

// act reports loops that hang, and ends the process unless that happened too often.
func (w *Watchdog) act(ctx context.Context, hung []Hung) {
	if len(hung) == 0 {
		w.unnoted.Store(false)
	}
	end, said := w.ends(), w.said
	if w.said = len(hung) > 0; !w.said || said && !end {
		return
	}
	if !said {
		w.unnoted.Store(end)
	}
	go func() { // neither disk nor log may stop the looks
		if end {
			err := w.note(names(hung))
			if w.unnoted.Store(err != nil); err != nil {
				w.cfg.Log.Error("a restart cannot be noted: there is none before this process has run for "+(hour/mostRestarts).String(), "err", err)
			}
		}
		w.cfg.Log.Error("loops hang: they have work and make no progress", "loops", hungError(hung), "since", hung[0].Since.Format(time.RFC3339), "restart", w.ends())
		stacks := make([]byte, maxStacks)
		_, _ = w.stacks.Write(stacks[:runtime.Stack(stacks, true)])
	}()
	if end && wake.Sleep(ctx, reportTime) && w.ends() {
		w.end()
	}
}

// note adds the restart that follows to File.
func (w *Watchdog) note(loops []string) error {
	w.mu.Lock()
	path := w.path
	w.mu.Unlock()
	if path == "" {
		return nil
	}
	text, err := json.Marshal(append(w.Restarts(), Restart{time.Now(), loops}))
	if err != nil {
		return err //nolint:wrapcheck // cannot be
	}
	return w.write(path, text, 0o600)
}
