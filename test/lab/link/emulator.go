package link

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// batch is how many frames are read before those that are due are written.
	batch = 32
	// grain is the shortest sleep: frames due within it come out together, late
	// by at most this, as from a network card that moderates its interrupts. A
	// wake-up for each frame of 100 Mbit/s keeps a slow machine's core busy.
	grain = 250 * time.Microsecond
	// late is how much later than due a frame must be to be counted.
	late = time.Millisecond
	// DefaultMTU is of the TAPs, bytes.
	DefaultMTU = 1500
)

// Stats are the counters of both directions since the start.
type Stats struct {
	Up   DirectionStats `json:"up"`
	Down DirectionStats `json:"down"`
}

// DirectionStats says what happened to the frames of one direction, and how well
// the emulator itself kept up.
type DirectionStats struct {
	Counters
	Refused   uint64  `json:"refused"`   // dropped: the TAP at the end is down
	Ring      uint64  `json:"ring"`      // dropped: not read in time, the emulator's own loss
	Late      uint64  `json:"late"`      // came out more than 1 ms later than due
	LateMaxMs float64 `json:"lateMaxMs"` // the worst of all
}

// Emulator is a link between two TAPs.
type Emulator struct {
	a, b     *tap
	up, down *lane
}

// New makes the TAPs, up and with the given MTU (0 means DefaultMTU), in the
// calling thread's network namespace. Close removes them. The error can be an
// ErrConfig.
func New(nameA, nameB string, mtu int, c Config, seed uint64) (_ *Emulator, err error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if mtu == 0 {
		mtu = DefaultMTU
	}
	e := &Emulator{}
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	if e.a, err = openTAP(nameA, mtu); err != nil {
		return nil, err
	}
	if e.b, err = openTAP(nameB, mtu); err != nil {
		return nil, err
	}
	const vlanTag = 4
	size := mtu + etherHeader + vlanTag
	start := time.Now()
	if e.up, err = newLane(e.a, e.b, NewQueue(c.Up, seed, size), start); err != nil {
		return nil, err
	}
	// Not the same seed: both directions would lose the same frames.
	e.down, err = newLane(e.b, e.a, NewQueue(c.Down, ^seed, size), start)
	return e, err
}

// Run carries frames until ctx ends or a TAP fails. Call it once, then Close.
func (e *Emulator) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	woken := make(chan struct{})
	context.AfterFunc(ctx, func() {
		e.up.wake()
		e.down.wake()
		close(woken)
	})
	var errs [2]error
	var wg sync.WaitGroup
	for i, l := range []*lane{e.up, e.down} {
		wg.Go(func() {
			defer cancel()
			errs[i] = l.carry(ctx)
		})
	}
	wg.Wait()
	<-woken // nobody touches descriptors now
	return errors.Join(errs[0], errs[1])
}

// Close removes the TAPs. Run must have ended.
func (e *Emulator) Close() {
	for _, t := range []*tap{e.a, e.b} {
		if t != nil {
			t.close()
		}
	}
	for _, l := range []*lane{e.up, e.down} {
		if l != nil {
			_ = unix.Close(l.event)
		}
	}
}

// Set changes the link immediately. The error is an ErrConfig; nothing is changed
// then.
func (e *Emulator) Set(c Config) error {
	if err := c.Check(); err != nil {
		return err
	}
	e.up.set(c.Up)
	e.down.set(c.Down)
	return nil
}

// Config returns what is set.
func (e *Emulator) Config() Config { return Config{Up: e.up.direction(), Down: e.down.direction()} }

// Stats returns the counters so far.
func (e *Emulator) Stats() (s Stats, err error) {
	if s.Up, err = e.up.snapshot(); err != nil {
		return s, err
	}
	s.Down, err = e.down.snapshot()
	return s, err
}

// lane carries frames in one direction.
type lane struct {
	from, to *tap
	event    int // an eventfd that wakes carry
	start    time.Time

	mu    sync.Mutex // held while frames are moved, not while waiting
	q     *Queue
	stats DirectionStats // without Counters and Ring
}

func newLane(from, to *tap, q *Queue, start time.Time) (*lane, error) {
	event, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return &lane{from: from, to: to, event: event, start: start, q: q}, nil
}

func (l *lane) now() time.Duration { return time.Since(l.start) }

// carry is one thread, because Go's own timers and poller round up to
// milliseconds.
func (l *lane) carry(ctx context.Context) error {
	runtime.LockOSThread() // and never unlock: the thread ends with its goroutine
	// Without it the kernel may let us sleep 50 µs longer.
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	for ctx.Err() == nil {
		more, err := l.move()
		if err != nil {
			return err
		}
		if !more {
			if err := l.wait(); err != nil {
				return err
			}
		}
	}
	return nil
}

// move reads what has come, up to a batch, and writes what is due.
func (l *lane) move() (more bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for ; n < batch; n++ {
		b := l.q.Buffer()
		size, err := l.from.read(b)
		if err != nil || size == 0 {
			l.q.Free(b)
			if err != nil {
				return false, err
			}
			break
		}
		l.q.Push(l.now(), b[:size])
	}
	for {
		now := l.now()
		frame, due := l.q.Pop(now)
		if frame == nil {
			return n == batch, nil
		}
		if behind := now - due; behind > late {
			l.stats.Late++
			l.stats.LateMaxMs = max(l.stats.LateMaxMs, float64(behind)/float64(time.Millisecond))
		}
		if !l.to.write(frame) {
			l.stats.Refused++
		}
		l.q.Free(frame)
	}
}

// wait sleeps until a frame comes in or is due.
func (l *lane) wait() error {
	l.mu.Lock()
	due, any := l.q.Next()
	l.mu.Unlock()
	var timeout *unix.Timespec
	if any {
		t := unix.NsecToTimespec(int64(max(due-l.now(), grain)))
		timeout = &t
	}
	fds := []unix.PollFd{{Fd: int32(l.from.fd), Events: unix.POLLIN}, {Fd: int32(l.event), Events: unix.POLLIN}}
	if _, err := unix.Ppoll(fds, timeout, nil); err != nil && err != unix.EINTR {
		return fmt.Errorf("wait for frames: %w", err)
	}
	if fds[0].Revents&(unix.POLLERR|unix.POLLNVAL) != 0 {
		return fmt.Errorf("tap %s is gone", l.from.name)
	}
	if fds[1].Revents != 0 {
		var count [8]byte
		_, _ = unix.Read(l.event, count[:]) // clears it
	}
	return nil
}

func (l *lane) wake() {
	_, _ = unix.Write(l.event, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // full only when it is awake anyway
}

func (l *lane) set(d Direction) {
	l.mu.Lock()
	l.q.Set(l.now(), d)
	l.mu.Unlock()
	l.wake()
}

func (l *lane) direction() Direction {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.q.Direction()
}

func (l *lane) snapshot() (DirectionStats, error) {
	ring, err := l.from.kernelDrops()
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Counters, s.Ring = l.q.Counters(), ring
	return s, err
}
