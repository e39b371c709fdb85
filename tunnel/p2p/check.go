package p2p

import (
	"context"
	"fmt"
	"sync"

	"github.com/libp2p/go-libp2p/core/network"

	"edgemesh/internal/wake"
)

// CheckRelays asks every relay now, over each connection to it, whether it
// answers. A relay that is not connected is being dialed all the time (the
// pauses stay below relayBackoff): the outcome of the last round is the answer, and
// where there is none yet, that of the first one, which ctx should leave
// relayDialTimeout for.
func (n *Node) CheckRelays(ctx context.Context) []RelayStatus {
	links := n.relays.all()
	out := make([]RelayStatus, len(links))
	var wg sync.WaitGroup
	for i, l := range links {
		wg.Go(func() { out[i] = l.check(ctx) })
	}
	wg.Wait()
	return out
}

// check is the link's status after a fresh ping over each of its connections.
func (l *relayLink) check(ctx context.Context) RelayStatus {
	for !l.hasOutcome() && wake.Sleep(ctx, awaitPoll) {
	}
	st := l.status()
	for _, c := range l.conns() {
		if err := pingConn(ctx, c); err != nil {
			st.Error = fmt.Sprintf("no answer over %s: %v", shortAddr(c.RemoteMultiaddr()), err)
			st.Reserved = false
		} else {
			return l.status()
		}
	}
	return st
}

func pingConn(ctx context.Context, c network.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, relaySilence)
	defer cancel()
	return ping1(ctx, c)
}

// hasOutcome says whether connecting or reserving has succeeded or failed since
// the start.
func (l *relayLink) hasOutcome() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rounds > 0
}
