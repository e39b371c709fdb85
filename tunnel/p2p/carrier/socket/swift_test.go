package socket

import (
	"testing"
	"time"

	"edgemesh/internal/tcptest"

	"golang.org/x/sys/unix"
)

func TestSwift(t *testing.T) {
	now := time.Unix(1000, 0)
	s := swift{looked: now}
	info := unix.TCPInfo{Min_rtt: 200}
	step := func(took time.Duration, rate float64, segments, resent uint32) bool {
		now = now.Add(took)
		info.Bytes_acked += uint64(rate * took.Seconds())
		info.Data_segs_out += segments
		info.Total_retrans += resent
		s.on = s.judge(&info, now)
		return s.on
	}
	const tenth = 100 * time.Millisecond
	for _, c := range []struct {
		what     string
		took     time.Duration
		rate     float64
		segments uint32
		resent   uint32
		rtt      uint32 // µs
		want     bool
	}{
		{"a link of 1 Gbit/s", tenth, 118 << 20, 8000, 0, 200, false},
		{"fast, but far", tenth, 500 << 20, 30000, 0, 5000, false},
		{"fast after a quiet time", time.Minute, 500 << 20, 30000, 0, 200, false},
		{"fast and lossy", tenth, 500 << 20, 30000, 300, 200, false},
		{"soon after that", tenth, 500 << 20, 30000, 0, 200, false},
		{"quiet for long", time.Hour, 1, 1, 0, 200, false},
		{"fast and near", tenth, 500 << 20, 30000, 0, 200, true},
		{"a few losses", tenth, 500 << 20, 30000, 30, 200, true},
		{"quiet", time.Hour, 1, 1, 0, 200, true},
		{"losses", tenth, 300 << 20, 20000, 100, 200, false},
		{"no longer, soon after", tenth, 500 << 20, 30000, 0, 200, false},
	} {
		info.Min_rtt = c.rtt
		if got := step(c.took, c.rate, c.segments, c.resent); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}

// On a socket of its own: the kernel is asked, and told.
func TestSwiftSocket(t *testing.T) {
	c, _ := tcptest.Pair(t)
	tn := newTuner(c)
	_ = tn.raw.Control(func(fd uintptr) {
		if err := unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, bbr); err != nil {
			t.Skip("no BBR: ", err)
		}
		now := time.Now()
		s := swift{looked: now, acked: ^uint64(0) - 1<<40} // as if very much had been acknowledged
		s.look(int(fd), now.Add(2*swiftEvery))
		got, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		if !s.on || got != unhurried || err != nil {
			t.Errorf("%q, %v, %+v", got, err, s)
		}
		s.resent -= 100 // as if that much had been lost
		s.look(int(fd), now.Add(4*swiftEvery))
		got, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		if s.on || got != bbr || err != nil {
			t.Errorf("%q, %v, %+v", got, err, s)
		}
	})
}
