package socket

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	// swiftEvery is how often a busy connection's rate is measured.
	swiftEvery = 100 * time.Millisecond
	// A path is swift if it carries swiftRate, in bytes per second, with a round trip below swiftRTT: processors limit it,
	// not a link with a queue.
	swiftRate = 250 << 20
	swiftRTT  = time.Millisecond
	// One retransmitted segment in swiftLoss is too many for a congestion control that takes a loss for a queue.
	swiftLoss = 500
	// swiftPause is how long BBR stays after that.
	swiftPause = time.Minute
	// unhurried is the congestion control of swift paths.
	unhurried = "cubic"
)

// swift watches whether a connection with BBR is better off without it: its pacing costs a timer for every super-segment,
// and its window, twice what fits a path of 0.1 ms, a wake-up for little data. A path that loses packets gets BBR back.
type swift struct {
	on     bool
	never  bool // the kernel does not have the other congestion control
	until  time.Time
	looked time.Time
	acked  uint64
	sent   uint32 // segments
	resent uint32
}

// look is called while data flow, with the socket's descriptor.
func (s *swift) look(fd int, now time.Time) {
	if s.never || now.Sub(s.looked) < swiftEvery {
		return
	}
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return
	}
	on := s.judge(info, now)
	if on == s.on {
		return
	}
	name := bbr
	if on {
		name = unhurried
	}
	if unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name) != nil {
		s.never = true
		return
	}
	s.on = on
}

// judge reports whether the path does better without BBR, by what the kernel counted since the last call.
func (s *swift) judge(info *unix.TCPInfo, now time.Time) bool {
	took := now.Sub(s.looked)
	acked := info.Bytes_acked - s.acked
	sent, resent := info.Data_segs_out-s.sent, info.Total_retrans-s.resent
	s.looked, s.acked, s.sent, s.resent = now, info.Bytes_acked, info.Data_segs_out, info.Total_retrans
	switch {
	case resent > 4 && resent > sent/swiftLoss:
		s.until = now.Add(swiftPause)
		return false
	case s.on:
		return true
	case now.Before(s.until) || took > 4*swiftEvery: // it was quiet in between
		return false
	}
	return time.Duration(info.Min_rtt)*time.Microsecond < swiftRTT && float64(acked) > swiftRate*took.Seconds()
}
