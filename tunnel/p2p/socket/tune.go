package socket

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// tuneEvery is how often the kernel is asked about a busy connection.
	tuneEvery = 10 * time.Millisecond
	// startupGain: BBR's pacing gain is above it only while it looks for the
	// path's rate (2.89; net/ipv4/tcp_bbr.c, in units of 1/256).
	startupGain = 2 * 256
	// standingTime and standingQueue, in bytes, are the least that stands in a queue
	// on the path before it is taken for one.
	standingTime  = 10 * time.Millisecond
	standingQueue = 64 << 10
	// restrainTime bounds how long BBR is held down.
	restrainTime = time.Second
	// unpaced is SO_MAX_PACING_RATE's "no limit".
	unpaced = ^uint64(0)
)

// tuner adapts a TCP socket to its path while it is busy: how much it takes
// unsent, and how far BBR may overshoot at its start. It is used by one goroutine.
type tuner struct {
	raw        syscall.RawConn // nil: nothing can be tuned
	bbr        bool
	lowat      int
	looked     time.Time
	restrained time.Time // since when; zero: it is not
	// least is the shortest smoothed round trip seen. The kernel's own least one is
	// wrong after a simultaneous open.
	least time.Duration
	swift swift
}

func newTuner(c any) tuner {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return tuner{}
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return tuner{}
	}
	t := tuner{raw: raw}
	_ = raw.Control(func(fd uintptr) {
		name, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		t.bbr = err == nil && name == bbr
	})
	return t
}

// tune is called while data flow; queue is what the path takes in a few
// milliseconds, in bytes.
func (t *tuner) tune(queue int, now time.Time) {
	if t.raw == nil || now.Sub(t.looked) < tuneEvery {
		return
	}
	t.looked = now
	_ = t.raw.Control(func(fd uintptr) {
		// The kernel asks for more when half of it is left.
		if lowat := min(max(2*queue, minNotSent), maxNotSent); lowat > t.lowat*5/4 || lowat < t.lowat*3/4 {
			if unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, lowat) == nil {
				t.lowat = lowat
			}
		}
		if !t.bbr {
			return
		}
		if t.restrained.IsZero() {
			t.swift.look(int(fd), now)
		}
		if !t.swift.on {
			t.restrain(int(fd), now)
		}
	})
}

// restrain keeps BBR's start from filling the queues on the path. BBR ends it when
// the rate has not grown for three rounds, but does not count rounds in which the
// application sent less than it might have. A flow inside the tunnel, clocked by its
// own acknowledgements, always seems to: BBR would go on at 2.89 times the path's
// rate for seconds, and the path would drop instead of the queue above. As soon as
// the round trip shows a queue on the path, the rate is therefore held below what
// it has been measured to be: the queue drains, data wait here, BBR's rounds count.
func (t *tuner) restrain(fd int, now time.Time) {
	info, err := unix.GetsockoptTCPCCBBRInfo(fd, unix.IPPROTO_TCP, unix.TCP_CC_INFO)
	if err != nil {
		return
	}
	starting := info.Pacing_gain > startupGain
	if !t.restrained.IsZero() {
		if !starting || now.Sub(t.restrained) > restrainTime {
			_ = unix.SetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, unpaced)
			t.restrained = time.Time{}
		}
		return
	}
	if !starting {
		return
	}
	tcp, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return
	}
	rate := uint64(info.Bw_hi)<<32 | uint64(info.Bw_lo) // bytes per second
	rtt := time.Duration(tcp.Rtt) * time.Microsecond
	if t.least == 0 || rtt < t.least {
		t.least = rtt
	}
	underWay := uint64(tcp.Unacked) * uint64(tcp.Snd_mss)
	fits := rate * uint64(t.least.Microseconds()) / 1e6
	if rtt-t.least < max(standingTime, t.least/4) || underWay < fits+standingQueue {
		return
	}
	if unix.SetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, rate*3/4) == nil {
		t.restrained = now
	}
}
