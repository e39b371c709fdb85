package relays

import (
	"bufio"
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/who/identity"
)

const (
	// maxWitnesses bounds the relays that are asked where they see a peer, and witnessTime how long.
	maxWitnesses = 4
	witnessTime  = 2 * time.Second
	// maxSeenBytes bounds an answer, and maxSeen the addresses that are read of it.
	maxSeenBytes = 2048
	maxSeen      = 8
)

// Witness is what relays say of where they see peers.
type Witness struct {
	*common
	clients func() []*client
}

// Ask asks operators' relays where they see p, all at the same time, and returns what each of them says until ctx ends. A
// relay of a former version says nothing.
func (w *Witness) Ask(ctx context.Context, p peer.ID) [][]endpoint.Endpoint {
	ctx, cancel := context.WithTimeout(ctx, witnessTime)
	defer cancel()
	var mu sync.Mutex // a leaf: guards all
	var all [][]endpoint.Endpoint
	var wg sync.WaitGroup
	asked := 0
	for _, c := range w.clients() {
		ends := c.conns()
		if len(ends) == 0 || asked == maxWitnesses || !w.Members.View().IsOperators(c.info.ID) || c.info.ID == p {
			continue
		}
		asked++
		wg.Go(func() {
			seen, err := seenBy(ctx, ends[0], p)
			if err != nil {
				w.Log.Debug("the relay does not say where it sees a peer", "relay", c.info.ID, "peer", p, "err", err)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, seen)
		})
	}
	wg.Wait()
	return all
}

// seenBy asks one relay.
func seenBy(ctx context.Context, relay network.Conn, p peer.ID) ([]endpoint.Endpoint, error) {
	st, err := conns.Open(ctx, relay, identity.SeenProtocol)
	if err != nil {
		return nil, err
	}
	defer func() { _ = st.Reset() }()
	deadline, _ := ctx.Deadline()
	_ = st.SetDeadline(deadline)
	if _, err := io.WriteString(st, p.String()+"\n"); err != nil {
		return nil, err
	}
	return parseSeen(st)
}

// parseSeen reads an answer; what is no address it leaves out.
func parseSeen(r io.Reader) ([]endpoint.Endpoint, error) {
	var out []endpoint.Endpoint
	lines := bufio.NewScanner(io.LimitReader(r, maxSeenBytes))
	for lines.Scan() && len(out) < maxSeen {
		a, err := ma.NewMultiaddr(lines.Text())
		if err != nil {
			continue
		}
		if e, ok := endpoint.Target(a); ok && e.Valid() && !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	return out, lines.Err()
}
