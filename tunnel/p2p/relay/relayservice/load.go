package relayservice

import (
	"fmt"
	"io"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/who/identity"
)

// answerTime bounds an answer.
const answerTime = 5 * time.Second

// load answers members how much of this relay is in use, in percent and a line: of its bandwidth, of the circuits it may
// have, or of the processors, whichever is the most. A member that could do without this relay then does. Links are full
// long before the rest, so a relay that does not know its bandwidth does not know the answer, and says that. A second line
// says that it holds more reservations than its share.
type load struct {
	isMember func(peer.ID) bool
	refused  func(reason string, p peer.ID, from string)
	traffic  *traffic
	circuits func() float64 // of those it may have
	crowded  func() bool
	budgets  budgets
}

// answer answers one question. It owns the stream.
func (l *load) answer(st network.Stream) {
	defer func() { _ = st.Reset() }()
	by, from := st.Conn().RemotePeer(), st.Conn().RemoteMultiaddr().String()
	switch {
	case !l.isMember(by):
		l.refused("question of no member", by, from)
		return
	case !l.budgets.take(by, time.Now()):
		l.refused("too many questions", by, from)
		return
	}
	_ = st.SetDeadline(time.Now().Add(answerTime))
	text := l.text() + "\n"
	if l.crowded() {
		text += identity.LoadCrowded + "\n"
	}
	if _, err := io.WriteString(st, text); err == nil {
		_ = st.Close()
		_, _ = st.Read(make([]byte, 1)) // until the other side has it, and closes
	}
}

func (l *load) text() string {
	if l.traffic.shares.bandwidth == 0 {
		return identity.LoadUnknown
	}
	most := max(l.circuits(), l.traffic.shares.inUse(), l.traffic.cpu.share())
	return fmt.Sprintf("%.0f", 100*min(most, 1))
}

// cpu is how much of the processors this process takes.
type cpu struct {
	at   time.Time
	used time.Duration
	now  atomic.Int64 // per mille, between the last two looks
}

// look is called now and then.
func (c *cpu) look(now time.Time) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return
	}
	used := time.Duration(u.Utime.Nano() + u.Stime.Nano())
	if passed := now.Sub(c.at); !c.at.IsZero() && passed > 0 {
		c.now.Store(int64(1000 * (used - c.used) / passed / time.Duration(runtime.GOMAXPROCS(0))))
	}
	c.at, c.used = now, used
}

func (c *cpu) share() float64 { return float64(c.now.Load()) / 1000 }
