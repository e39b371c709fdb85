package socket

import (
	"math"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// tuneEvery is how often the kernel's view of a busy connection is read.
	tuneEvery = 10 * time.Millisecond
	// waitEvery is how often, while a write lasts; more and more seldom, up to waitMost, while nothing arrives.
	waitEvery, waitMost = 20 * time.Millisecond, time.Second
	// startupGain: BBR's pacing gain is above it only while it searches the path's rate (2.89; net/ipv4/tcp_bbr.c, in units
	// of 1/256).
	startupGain = 2 * 256
	// recovery is the least TCP_INFO state in which losses are repaired (TCP_CA_Recovery of linux/tcp.h).
	recovery = 3
	// reno is the congestion control that every kernel has.
	reno = "reno"
)

// tuner adapts a TCP socket to its path while it is busy: how much it takes unsent, and how BBR finds its rate.
type tuner struct {
	raw syscall.RawConn // nil: nothing can be tuned

	mu     sync.Mutex
	bbr    bool
	lowat  int
	looked time.Time
	ended  time.Time // the last write
	pacer  pacer
	swift  swift

	watch
}

// watch looks while a write lasts.
type watch struct {
	wait    *time.Timer // nil: there was none
	every   time.Duration
	writes  bool   // one is under way
	arrived uint32 // segments by now
}

func newTuner(c any) *tuner {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return &tuner{}
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return &tuner{}
	}
	t := &tuner{raw: raw}
	_ = raw.Control(func(fd uintptr) {
		name, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		t.bbr = err == nil && name == bbr
	})
	return t
}

// begin is called before data are written; queue is what the path takes in a few milliseconds, in bytes.
func (t *tuner) begin(queue int, now time.Time) {
	if t.raw == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.writes, t.every = true, waitEvery
	t.tune(queue, now)
	switch {
	case !t.bbr:
	case t.wait == nil:
		t.wait = time.AfterFunc(waitEvery, t.waits)
	default:
		t.wait.Reset(waitEvery)
	}
}

// end is called after that.
func (t *tuner) end(now time.Time) {
	if t.raw == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.writes, t.ended = false, now
	if t.wait != nil {
		t.wait.Stop()
	}
}

// waits looks at a connection on which a write lasts: its line may have become slower.
func (t *tuner) waits() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.writes {
		return
	}
	t.ended = time.Now() // it does not pause
	before := t.arrived
	if t.tune(t.lowat/2, t.ended); t.arrived == before {
		t.every = min(2*t.every, waitMost)
	} else {
		t.every = waitEvery
	}
	t.wait.Reset(t.every)
}

// tune holds mu.
func (t *tuner) tune(queue int, now time.Time) {
	if now.Sub(t.looked) < tuneEvery {
		return
	}
	t.looked = now
	_ = t.raw.Control(func(fd uintptr) {
		// The kernel wants more when half of it is left.
		if lowat := min(max(2*queue, minNotSent), maxNotSent); lowat > t.lowat*5/4 || lowat < t.lowat*3/4 {
			if unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, lowat) == nil {
				t.lowat = lowat
			}
		}
		if !t.bbr {
			return
		}
		t.swift.look(int(fd), now)
		if !t.swift.on {
			t.pace(int(fd), now)
			return
		}
		t.limit(int(fd), t.pacer.leave())
	})
}

// pace reads BBR's state and does what the pacer decides.
func (t *tuner) pace(fd int, now time.Time) {
	info, err := unix.GetsockoptTCPCCBBRInfo(fd, unix.IPPROTO_TCP, unix.TCP_CC_INFO)
	if err != nil {
		return
	}
	tcp, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return
	}
	for _, least := range []*uint32{&tcp.Min_rtt, &info.Min_rtt} {
		if *least == math.MaxUint32 { // no sample yet
			*least = 0
		}
	}
	t.arrived = tcp.Delivered
	out := max(int64(tcp.Bytes_sent)-int64(tcp.Bytes_retrans)-int64(tcp.Bytes_acked), 0) // and not acknowledged in sequence
	rate := uint64(info.Bw_hi)<<32 | uint64(info.Bw_lo)
	o := t.pacer.decide(sight{
		rate:     rate,
		starting: info.Pacing_gain > startupGain || info.Pacing_gain == 0, // no answer yet
		emptied:  info.Cwnd_gain == 256,
		rtt:      time.Duration(tcp.Rtt) * time.Microsecond,
		floor:    time.Duration(tcp.Min_rtt) * time.Microsecond,
		recent:   time.Duration(info.Min_rtt) * time.Microsecond,
		underWay: uint64(tcp.Unacked) * uint64(tcp.Snd_mss),
		inFlight: uint64(max(int64(tcp.Unacked)-int64(tcp.Sacked)-int64(tcp.Lost)+int64(tcp.Retrans), 0)) * uint64(tcp.Snd_mss),
		repairs:  tcp.Ca_state >= recovery,
		paused:   now.Sub(t.ended),
		unsent:   tcp.Notsent_bytes > 0,
		segment:  tcp.Snd_mss,
		arrived:  traffic{bytes: tcp.Bytes_acked + uint64(out)*uint64(tcp.Sacked)/uint64(max(tcp.Unacked, 1)), segments: tcp.Delivered},
		came:     tcp.Segs_in,
		sent:     traffic{bytes: tcp.Bytes_sent, segments: tcp.Data_segs_out},
		resent:   tcp.Total_retrans,
		received: traffic{bytes: tcp.Bytes_received, segments: tcp.Data_segs_in},
	}, now)
	t.limit(fd, o)
	// Setting what is set has no effect: BBR starts again when it comes back.
	if o.restart && unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, reno) == nil {
		if t.bbr = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, bbr) == nil; !t.bbr {
			t.limit(fd, t.pacer.leave())
		}
	}
}

func (t *tuner) limit(fd int, o order) {
	if o.limit != 0 {
		_ = unix.SetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, o.limit)
	}
}
