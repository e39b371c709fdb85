package clones

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/who/identity"
)

// An exchange that failed is repeated soon, on other connections if there are any, then after pauses, in all so often.
const (
	tries      = 6
	soon       = 500 * time.Millisecond
	soonTries  = 3
	firstPause = 15 * time.Second
	maxLost    = 1024 // losers that are remembered
)

// At is a machine as a witness sees it.
type At struct {
	Instance string `json:"instance,omitempty"`
	Host     string `json:"host,omitempty"`
	Addr     string `json:"addr,omitempty"`
}

// maxWord bounds what another machine or a witness says of itself, in bytes: it is sent on.
const maxWord = 200

func short(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxWord)], "") }

func (a At) String() string {
	if a.Host == "" {
		return a.Addr
	}
	return fmt.Sprintf("%s (host name %q)", a.Addr, a.Host)
}

// OrBefore is a, or was where a says less of the same machine: only through which relay it was seen.
func (a At) OrBefore(was At) At {
	if a.Instance == was.Instance && strings.Contains(a.Addr, "/p2p-circuit") && was.Addr != "" {
		return was
	}
	return a
}

// Pair are two machines with one key.
type Pair struct {
	Peer     peer.ID `json:"-"`
	Keeps    At      `json:"keeps"`
	StandsBy At      `json:"standsBy"`
	Why      string  `json:"why"` // the one keeps the node's traffic
}

// Report logs p, unless the same two were seen before.
func (p Pair) Report(log *slog.Logger, node string, again bool) {
	if !again {
		log.Warn("two machines use one node's key", "node", node, "peer", p.Peer, "keeps", p.Keeps, "standsBy", p.StandsBy, "because", p.Why)
	}
}

// Witness sees whether one peer ID is at two places.
type Witness struct {
	Host   host.Host
	Judged func(peer.ID) bool // who is: strangers are not
	Found  func(p Pair, again bool)
	Spawn  func(func()) bool
	Log    *slog.Logger

	mu   sync.Mutex // a leaf: guards what follows
	at   map[network.Conn]string
	busy map[string]bool // peer and instance whose exchange is under way
	lost map[string]bool // peer and instance that stood by when it was compared last
}

// Start watches connections until ctx ends.
func (w *Witness) Start(ctx context.Context) error {
	w.at, w.busy, w.lost = make(map[network.Conn]string), make(map[string]bool), make(map[string]bool)
	sub, err := w.Host.EventBus().Subscribe(new(event.EvtPeerIdentificationCompleted))
	if err != nil {
		return fmt.Errorf("subscribe to identification: %w", err)
	}
	w.Host.Network().Notify(&network.NotifyBundle{DisconnectedF: func(_ network.Network, c network.Conn) {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.at, c)
	}})
	w.Spawn(func() {
		defer sub.Close()
		for {
			select {
			case <-ctx.Done():
				return
			case e, open := <-sub.Out():
				if !open {
					return
				}
				x := e.(event.EvtPeerIdentificationCompleted) //nolint:forcetypeassert // subscribed to nothing else
				if instance := instanceOf(x.AgentVersion); instance != "" && w.Judged(x.Peer) {
					w.arrived(ctx, x.Conn, instance)
				}
			}
		}
	})
	return nil
}

// StandsBy reports whether the other end of c stands by for a machine that is connected too.
func (w *Witness) StandsBy(c network.Conn) bool {
	p := c.RemotePeer()
	w.mu.Lock()
	instance := w.at[c]
	lost := w.lost[string(p)+instance]
	w.mu.Unlock()
	if !lost {
		return false
	}
	_, others := w.places(p, instance)
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(others, func(o network.Conn) bool { return !w.lost[string(p)+w.at[o]] })
}

func (w *Witness) arrived(ctx context.Context, c network.Conn, instance string) {
	p := c.RemotePeer()
	key := string(p) + instance
	w.mu.Lock()
	if !c.IsClosed() { // otherwise nothing would remove it
		w.at[c] = instance
	}
	busy := w.busy[key]
	w.mu.Unlock()
	if _, others := w.places(p, instance); len(others) == 0 || busy {
		return
	}
	w.setBusy(key, true)
	if !w.Spawn(func() {
		defer w.setBusy(key, false)
		w.judge(ctx, p, instance)
	}) {
		w.setBusy(key, false)
	}
}

func (w *Witness) setBusy(key string, busy bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if busy {
		w.busy[key] = true
	} else {
		delete(w.busy, key)
	}
}

// places are p's connections: of the instance, and of others.
func (w *Witness) places(p peer.ID, instance string) (of, others []network.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.Host.Network().ConnsToPeer(p) {
		switch at := w.at[c]; {
		case at == "" || c.IsClosed():
		case at == instance:
			of = append(of, c)
		default:
			others = append(others, c)
		}
	}
	return of, others
}

// judge has two places of p answer, if there are two.
func (w *Witness) judge(ctx context.Context, p peer.ID, instance string) {
	pause := firstPause
	for try := range tries {
		of, others := w.places(p, instance)
		if len(of) == 0 || len(others) == 0 {
			return
		}
		pair, err := exchange(ctx, [2]network.Conn{of[try%len(of)], others[try%len(others)]})
		if err == nil {
			w.note(pair)
			return
		}
		w.Log.Debug("one peer ID, two instances: not both answer", "peer", p, "try", try+1, "err", err)
		after := soon
		if try >= soonTries {
			after, pause = pause, pause*4
		}
		if !wake.Sleep(ctx, after) {
			return
		}
	}
}

func (w *Witness) note(x Pair) {
	w.mu.Lock()
	again := w.lost[string(x.Peer)+x.StandsBy.Instance]
	if len(w.lost) >= maxLost {
		clear(w.lost)
	}
	delete(w.lost, string(x.Peer)+x.Keeps.Instance)
	w.lost[string(x.Peer)+x.StandsBy.Instance] = true
	w.mu.Unlock()
	w.Found(x, again)
}

// exchange passes the messages of two places across. It fails unless both take part.
func exchange(ctx context.Context, of [2]network.Conn) (out Pair, err error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeTime)
	defer cancel()
	var in [2]*json.Decoder
	var to [2]*json.Encoder
	var streams [2]network.Stream
	var hellos [2]hello
	for i, c := range of {
		s, err := conns.Open(ctx, c, identity.InstanceProtocol)
		if err != nil {
			return out, err
		}
		defer func() { _ = s.Reset() }()
		deadline, _ := ctx.Deadline()
		_ = s.SetDeadline(deadline)
		streams[i], in[i], to[i] = s, json.NewDecoder(io.LimitReader(s, maxExchange)), json.NewEncoder(s)
		if err := in[i].Decode(&hellos[i]); err != nil {
			return out, fmt.Errorf("no answer: %w", err)
		}
	}
	for i := range of {
		if err := to[i].Encode(offer{hellos[1-i], of[1-i].RemoteMultiaddr().String()}); err != nil {
			return out, err
		}
	}
	var said [2]Statement
	var proof [2]signed
	for i, c := range of {
		if err := in[i].Decode(&proof[i]); err != nil {
			return out, fmt.Errorf("no statement: %w", err)
		}
		key, err := c.RemotePeer().ExtractPublicKey()
		if err != nil {
			return out, err
		}
		if said[i], err = proof[i].open(key, hellos[i], hellos[1-i]); err != nil {
			return out, err
		}
	}
	for i, s := range streams {
		if err := to[i].Encode(proof[1-i]); err != nil {
			return out, err
		}
		_ = s.CloseWrite()
	}
	for _, s := range streams {
		_, _ = s.Read(make([]byte, 1)) // until it has been taken
	}
	k := 0
	if !said[0].Keeps(said[1]) {
		k = 1
	}
	at := func(i int) At { return At{said[i].Instance, short(said[i].Host), of[i].RemoteMultiaddr().String()} }
	return Pair{of[k].RemotePeer(), at(k), at(1 - k), said[k].Why(said[1-k])}, nil
}
