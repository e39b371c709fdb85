package join

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	mss "github.com/multiformats/go-multistream"

	"edgemesh/internal/seldom"
	"edgemesh/tunnel/p2p/admission/transcript"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/who/identity"
)

// Patience bounds one exchange, on either side.
const Patience = 5 * time.Second

// Prover proves this node's secrets to relays, or shows them its statement.
type Prover struct {
	log      *slog.Logger
	reported seldom.Log

	mu        sync.Mutex // guards what follows; only reported's lock is taken below it
	secrets   []Secret
	statement string            // "": none is known
	failed    map[peer.ID]error // by relay that accepts none of them
}

// NewProver returns a prover of secrets, of which there may be none.
func NewProver(secrets []Secret, log *slog.Logger) *Prover {
	return &Prover{log: log, secrets: secrets, failed: make(map[peer.ID]error)}
}

// Set replaces the secrets: the next connections are proved with them.
func (p *Prover) Set(secrets []Secret) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.secrets = secrets
	clear(p.failed)
}

// Show replaces the statement, and reports whether it is another one.
func (p *Prover) Show(statement string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	other := p.statement != statement
	p.statement = statement
	return other
}

// Refusal is why a relay does not serve this node; nil if it does, as far as is known.
func (p *Prover) Refusal(relay peer.ID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed[relay]
}

// Prove proves this node's secrets to the relay at the other end of c, or shows it its statement, unless that relay lists its members. c
// leads to a relay that the operator has listed: nobody else may see a proof.
func (p *Prover) Prove(ctx context.Context, c network.Conn) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	p.mu.Lock()
	secrets, statement := slices.Clone(p.secrets), p.statement
	p.mu.Unlock()
	lists := func(err error) bool { return errors.As(err, new(mss.ErrNotSupported[protocol.ID])) }
	var err error
	if len(secrets) > 0 {
		err = exchange(ctx, c, secrets)
	}
	if statement != "" && (len(secrets) == 0 || lists(err)) {
		if err = show(ctx, c, statement); !errors.Is(err, ErrRefused) {
			err = nil // the relay reads its membership, perhaps not with this node yet
		}
	}
	if lists(err) {
		err = nil
	}
	if err != nil && (ctx.Err() != nil || c.IsClosed()) && !errors.Is(err, ErrWrongSecret) && !errors.Is(err, ErrRefused) {
		return // what ended the connection is reported by its owner
	}
	p.note(c.RemotePeer(), err)
}

// Admit is Prove, and returns why the relay does not admit this node.
func (p *Prover) Admit(ctx context.Context, c network.Conn) error {
	p.Prove(ctx, c)
	return p.Refusal(c.RemotePeer())
}

// note keeps the outcome for Refusal, and logs a failure once per relay and minute.
func (p *Prover) note(relay peer.ID, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		delete(p.failed, relay)
		return
	}
	p.failed[relay] = err
	if p.reported.Due(string(relay)) {
		p.log.Warn("relay does not admit this node: peers cannot reach it through that relay; where it requires the join secret, compare the files that joinSecretFile names here and there",
			"relay", relay, "err", err)
	}
}

// exchange is the member's side of the protocol.
func exchange(ctx context.Context, c network.Conn, secrets []Secret) error {
	t, err := transcript.ForProver(c, identity.JoinProtocol)
	if err != nil {
		return err
	}
	s, err := conns.Open(ctx, c, identity.JoinProtocol)
	if err != nil {
		return err
	}
	defer func() { _ = s.Reset() }()
	stop := context.AfterFunc(ctx, func() { _ = s.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := t.ReadChallenge(s); err != nil {
		return err
	}
	proofs := make([]proof, len(secrets))
	for i, secret := range secrets {
		proofs[i] = prove(t, secret)
	}
	if _, err := s.Write(marshal(proofs)); err != nil {
		return fmt.Errorf("write proof: %w", err)
	}
	var verdict [1]byte
	if _, err := io.ReadFull(s, verdict[:]); err != nil {
		return fmt.Errorf("read verdict: %w", err)
	}
	switch verdict[0] {
	case accepted:
		return nil
	case wrongSecret:
		return ErrWrongSecret
	}
	return fmt.Errorf("the relay's verdict is %d, which this version does not know", verdict[0])
}
