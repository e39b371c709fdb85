package relays

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/conns"
	"edgemesh/tunnel/p2p/identity"
)

const (
	// A relay is asked for its load every loadEvery while a path depends on it, and what it said holds for loadHolds.
	loadEvery = 5 * time.Second
	loadHolds = 20 * time.Second
	// loadHigh percent and more is too much for those who could do without the relay.
	loadHigh = 70
	// loadPatience bounds a question, and loadBytes its answer.
	loadPatience = 5 * time.Second
	loadBytes    = 8
)

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
}

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
	return now.Sub(x.told) < loadHolds && x.percent < loadHigh
}

func (l *Loads) ask(c *client, x *loaded) {
	ends := c.conns()
	if len(ends) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(l.ctx, loadPatience)
	defer cancel()
	percent, err := loadOf(ctx, ends[0])
	if err != nil {
		l.Log.Debug("the relay does not say how loaded it is", "relay", c.info.ID, "err", err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	x.told, x.percent = time.Now(), percent
}

// forget forgets what a relay has said that is none now.
func (l *Loads) forget(p peer.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, p)
}

// loadOf asks one relay.
func loadOf(ctx context.Context, relay network.Conn) (percent int, err error) {
	st, err := conns.Open(ctx, relay, identity.LoadProtocol)
	if err != nil {
		return 0, err
	}
	defer func() { _ = st.Reset() }()
	deadline, _ := ctx.Deadline()
	_ = st.SetDeadline(deadline)
	if err := st.CloseWrite(); err != nil {
		return 0, err
	}
	return parseLoad(st)
}

// parseLoad reads an answer.
func parseLoad(r io.Reader) (percent int, err error) {
	line, err := bufio.NewReader(io.LimitReader(r, loadBytes)).ReadString('\n')
	if err != nil {
		return 0, err
	}
	percent, err = strconv.Atoi(strings.TrimSuffix(line, "\n"))
	if err != nil || percent < 0 || percent > 100 {
		return 0, fmt.Errorf("%q is not a load in percent", line)
	}
	return percent, nil
}
