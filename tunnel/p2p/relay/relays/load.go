package relays

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/causes"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/who/identity"
)

const (
	// A relay is asked for its load every loadEvery while a path depends on it, and what it said holds for loadHolds.
	loadEvery = 5 * time.Second
	loadHolds = 20 * time.Second
	// loadHigh percent and more is too much for those who could do without the relay.
	loadHigh = 70
	// loadPatience bounds a question, and loadBytes its answer.
	loadPatience = 5 * time.Second
	loadBytes    = 16
)

// errUnmeasured is the answer of a relay that does not know its link, and so not how much of it is free.
var errUnmeasured = errors.New("it does not know its bandwidth: set limits.bandwidth there")

// errBadLoad is an answer that is none.
var errBadLoad = errors.New("not a load in percent")

// Loads is how much of relays is in use, as they say themselves. A relay of a former version says nothing.
type Loads struct {
	*common
	client func(peer.ID) *client

	mu sync.Mutex // a leaf: guards what follows
	of map[peer.ID]*loaded
}

type loaded struct {
	asked, told time.Time
	percent     int
	err         error // why the last answer says nothing
	bad         bool  // there was nonsense since the last load
}

// room reports whether the relay said lately that it has some.
func (x *loaded) room(now time.Time) bool { return now.Sub(x.told) < loadHolds && x.percent < loadHigh }

// Room reports whether relay p has room for traffic that could do without it, as it said lately. It does not wait: the
// first call says no, and has the relay asked.
func (l *Loads) Room(p peer.ID) bool {
	c, now := l.client(p), time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.of[p]
	if x == nil {
		x = &loaded{}
		l.of[p] = x
	}
	if c != nil && now.Sub(x.asked) >= loadEvery {
		x.asked = now
		l.Spawn(func() { l.ask(c, x) })
	}
	return x.room(now)
}

// Full says why relay p has no room for traffic that could do without it; "" if it has.
func (l *Loads) Full(p peer.ID) string {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.of[p]
	switch {
	case x != nil && x.room(now):
		return ""
	case x != nil && x.err != nil:
		return "its relay does not say how loaded it is: " + causes.OneLine(x.err.Error())
	case x != nil && now.Sub(x.told) < loadHolds:
		return fmt.Sprintf("its relay is loaded: %d %%, at most %d %% would do", x.percent, loadHigh-1)
	}
	return "its relay has not said how loaded it is"
}

func (l *Loads) ask(c *client, x *loaded) {
	ends := c.conns()
	if len(ends) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(l.ctx, loadPatience)
	defer cancel()
	percent, _, err := loadOf(ctx, ends[0])
	l.mu.Lock()
	level := x.answered(percent, err)
	l.mu.Unlock()
	if err != nil {
		l.Log.Log(ctx, level, "the relay does not say how loaded it is: no path takes a detour through it", "relay", c.info.ID, "err", err)
	}
}

// answered notes an answer, and returns how loud to complain: of nonsense once, until there is a load again. An answer
// without a load does not take back what was said before, unless the relay says so.
func (x *loaded) answered(percent int, err error) slog.Level {
	level := slog.LevelDebug
	if errors.Is(err, errBadLoad) && !x.bad {
		level = slog.LevelWarn
	}
	x.err, x.bad = err, err != nil && (x.bad || errors.Is(err, errBadLoad))
	switch {
	case err == nil:
		x.told, x.percent = time.Now(), percent
	case errors.Is(err, errUnmeasured):
		x.told = time.Time{}
	}
	return level
}

// forget forgets what a relay has said that is none now.
func (l *Loads) forget(p peer.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, p)
}

// loadOf asks one relay.
func loadOf(ctx context.Context, relay network.Conn) (percent int, crowded bool, err error) {
	st, err := conns.Open(ctx, relay, identity.LoadProtocol)
	if err != nil {
		return 0, false, err
	}
	defer func() { _ = st.Reset() }()
	deadline, _ := ctx.Deadline()
	_ = st.SetDeadline(deadline)
	if err := st.CloseWrite(); err != nil {
		return 0, false, err
	}
	return parseLoad(st)
}

// parseLoad reads an answer. A relay of a former version never says that it is crowded.
func parseLoad(r io.Reader) (percent int, crowded bool, err error) {
	in := bufio.NewReader(io.LimitReader(r, loadBytes))
	line, err := in.ReadString('\n')
	switch {
	case errors.Is(err, io.EOF) && line != "":
		return 0, false, fmt.Errorf("%q: %w", line, errBadLoad)
	case err != nil:
		return 0, false, err
	}
	more, _ := in.ReadString('\n')
	crowded = more == identity.LoadCrowded+"\n"
	line = strings.TrimSuffix(line, "\n")
	if line == identity.LoadUnknown {
		return 0, crowded, errUnmeasured
	}
	percent, err = strconv.Atoi(line)
	if err != nil || percent < 0 || percent > 100 {
		return 0, crowded, fmt.Errorf("%q: %w", line, errBadLoad)
	}
	return percent, crowded, nil
}

// asks notes whether the relay is crowded, and reports whether that is so. One that does not say is not.
func (c *client) asks() (crowded bool) {
	ends := c.conns()
	if len(ends) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(c.ctx, loadPatience)
	defer cancel()
	_, crowded, _ = loadOf(ctx, ends[0])
	c.outcome.setCrowded(crowded)
	return crowded
}
