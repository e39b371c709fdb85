package socket

import (
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// faultMemory is for how many segments a path that lost or reordered one counts as one that does: of 1 % there are ten
	// among them, and a queue that overflowed once is forgotten soon.
	faultMemory = 1000
	// faultsEvery is how often the kernel is asked.
	faultsEvery = 2 * time.Millisecond
)

// faults tell whether a path loses or reorders segments. Those that are lost at the end of what is sent are seen where they
// are sent only.
type faults struct {
	mu      sync.Mutex // a leaf
	looked  time.Time
	out, in way
	clean   bool // neither way has had a fault lately
}

// none reports whether the path of a socket has had no fault lately.
func (f *faults) none(raw syscall.RawConn, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.looked) < faultsEvery {
		return f.clean
	}
	f.looked, f.clean = now, false
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			out := f.out.faulty(info.Data_segs_out, info.Total_retrans+info.Reord_seen)
			in := f.in.faulty(info.Data_segs_in, info.Rcv_ooopack)
			f.clean = !out && !in
		}
	})
	return f.clean
}

// way remembers when one way of a connection had a fault last. Its beginning counts as one: what loses packets may not have
// shown it yet.
type way struct {
	count    uint32 // of faults
	segments uint32 // at the last one
}

// faulty takes in how many segments there were since the connection began, and faults among them; both wrap around. It
// reports whether one of the last faultMemory segments had one.
func (w *way) faulty(segments, count uint32) bool {
	if count != w.count {
		w.count, w.segments = count, segments
	}
	return segments-w.segments < faultMemory
}
