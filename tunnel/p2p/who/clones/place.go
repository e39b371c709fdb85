package clones

import (
	"encoding/json"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/time/rate"
)

// A witness may have so many statements in a row, then one per period. Budgets are few: only members and relays connect.
const (
	statements  = 4
	statedEvery = 2 * time.Second
	maxBudgets  = 256
)

// Place answers witnesses for this node.
type Place struct {
	Key      crypto.PrivKey
	Instance string
	Host     string
	Matches  bool
	Known    func() (known time.Duration, second bool)
	Proved   func(Proof) // may be called again and again, at the same time
	Log      *slog.Logger

	mu      sync.Mutex // a leaf: guards budgets
	budgets map[peer.ID]*rate.Limiter
}

// Proof is that another machine has this node's key, and answers.
type Proof struct {
	Mine, Theirs Statement
	At           At      // where the witness sees it: its word
	Witness      peer.ID // who passed it on
}

func (p *Place) take(by peer.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.budgets == nil || len(p.budgets) > maxBudgets {
		p.budgets = make(map[peer.ID]*rate.Limiter)
	}
	l := p.budgets[by]
	if l == nil {
		l = rate.NewLimiter(rate.Every(statedEvery), statements)
		p.budgets[by] = l
	}
	return l.Allow()
}

// Answer takes part in one exchange. It owns the stream.
func (p *Place) Answer(s network.Stream) {
	defer func() { _ = s.Reset() }()
	by := s.Conn().RemotePeer()
	if !p.take(by) {
		return
	}
	_ = s.SetDeadline(time.Now().Add(exchangeTime))
	proof, err := p.exchange(s)
	if err != nil {
		p.Log.Debug("exchange with another machine that has this node's key", "through", by, "err", err)
		return
	}
	proof.Witness = by
	_ = s.Close()
	p.Proved(proof)
}

func (p *Place) exchange(s io.ReadWriter) (proof Proof, err error) {
	in, out := json.NewDecoder(io.LimitReader(s, maxExchange)), json.NewEncoder(s)
	mine := hello{p.Instance, random(16)}
	if err := out.Encode(mine); err != nil {
		return proof, err
	}
	var other offer
	if err := in.Decode(&other); err != nil {
		return proof, err
	}
	if other.Instance == p.Instance {
		return proof, errStatement
	}
	said := Statement{hello: mine, Other: other.hello, Matches: p.Matches, Host: p.Host}
	said.Known, said.Second = p.Known()
	x, err := said.sign(p.Key)
	if err != nil {
		return proof, err
	}
	if err := out.Encode(x); err != nil {
		return proof, err
	}
	if err := in.Decode(&x); err != nil {
		return proof, err
	}
	theirs, err := x.open(p.Key.GetPublic(), other.hello, mine)
	return Proof{Mine: said, Theirs: theirs, At: At{theirs.Instance, short(theirs.Host), short(other.Seen)}}, err
}
