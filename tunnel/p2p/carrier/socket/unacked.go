package socket

import (
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unackedEvery is how often a connection is looked at while bytes are on their way.
const unackedEvery = 10 * time.Second

// unacked notices that the other end has gone while bytes are on their way to it. The kernel then sends no keep-alive, and repeats
// the bytes for a quarter of an hour (tcp(7), tcp_retries2). TCP_USER_TIMEOUT would bound that, but also end a silent connection
// after one keep-alive without an answer. Looking sends nothing.
type unacked struct {
	mu    sync.Mutex // a leaf
	every time.Duration
	raw   syscall.RawConn // nil: it is not wanted
	timer *time.Timer
	runs  bool
	stuck time.Time     // bytes were unacknowledged then, and nothing was heard since
	quiet time.Duration // since something was heard, when it was stopped with nothing on its way

	probe   func(after time.Duration) // has the kernel probe the other end, 0: never; nil: nothing is probed. Set before want
	silence time.Duration             // after which it does
	arrived uint32                    // segments, at the last look at which there were more
	since   time.Time                 // that look
	probing bool
}

// want has end called, in a goroutine of its own, once nothing was heard for 30 to 40 s with bytes on their way.
func (u *unacked) want(raw syscall.RawConn, end func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.timer != nil || raw == nil {
		return
	}
	u.raw = raw
	u.timer = time.AfterFunc(u.every, func() {
		if u.look(time.Now()) {
			end()
		}
	})
	u.runs = true
}

// wrote is called before bytes are written.
func (u *unacked) wrote() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.raw != nil && !u.runs {
		u.runs = true
		u.timer.Reset(u.every)
	}
}

// stop ends it for good.
func (u *unacked) stop() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.raw != nil {
		if i := u.info(); i.Unacked == 0 {
			u.quiet = time.Duration(i.Last_ack_recv) * time.Millisecond
		}
	}
	u.raw = nil
	if u.timer != nil {
		u.timer.Stop()
	}
}

// look reports whether the other end is gone.
func (u *unacked) look(now time.Time) (gone bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.raw == nil {
		return false
	}
	i := u.info()
	u.supervise(i.Segs_in, now)
	heard := now.Add(-time.Duration(i.Last_ack_recv) * time.Millisecond)
	switch {
	case i.Unacked == 0: // or the other end does not read, and says so
		u.stuck = time.Time{}
		if i.Notsent_bytes == 0 && u.probe == nil {
			u.runs = false
			return false
		}
	case u.stuck.IsZero() || heard.After(u.stuck):
		u.stuck = now
	case now.Sub(u.stuck) >= 2*u.every:
		return true
	}
	u.timer.Reset(u.every)
	return false
}

// supervise has the other end probed from which no segment has arrived for too long, until one does. The kernel ends the connection
// if none does.
func (u *unacked) supervise(arrived uint32, now time.Time) {
	if u.probe == nil {
		return
	}
	if arrived != u.arrived || u.since.IsZero() {
		u.arrived, u.since = arrived, now
	}
	silent := now.Sub(u.since) >= u.silence
	switch {
	case silent && !u.probing:
		u.probe(u.silence) // has passed already: it probes now, and not again after an answer
	case !silent && u.probing:
		u.probe(0)
	}
	u.probing = silent
}

// info is what the kernel says; zeros where it says nothing.
func (u *unacked) info() *unix.TCPInfo {
	out := new(unix.TCPInfo)
	_ = u.raw.Control(func(fd uintptr) {
		if i, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			out = i
		}
	})
	return out
}

// Silent says for how long nothing had been heard when a connection ended that the kernel kept alive: it was fresh if the other end
// closed it. 0: it has not ended, or something was on its way.
func (b *Conn) Silent() time.Duration {
	b.unacked.mu.Lock()
	defer b.unacked.mu.Unlock()
	return b.unacked.quiet
}
