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

// Prover proves this node's secrets to relays.
type Prover struct {
	log      *slog.Logger
	reported seldom.Log

	mu      sync.Mutex // guards what follows; only reported's lock is taken below it
	secrets []Secret
	failed  map[peer.ID]error // by relay that accepts none of them
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

// Refusal is why a relay does not serve this node; nil if it does, as far as is known.
func (p *Prover) Refusal(relay peer.ID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed[relay]
}

// Prove proves this node's secrets to the relay at the other end of c, unless that relay knows the membership. c leads to a
// relay that the operator has listed: nobody else may see a proof.
func (p *Prover) Prove(ctx context.Context, c network.Conn) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	p.mu.Lock()
	secrets := slices.Clone(p.secrets)
	p.mu.Unlock()
	if len(secrets) == 0 {
		return
	}
	err := exchange(ctx, c, secrets)
	if none := (mss.ErrNotSupported[protocol.ID]{}); errors.As(err, &none) {
		err = nil // it knows the membership
	}
	if err != nil && (ctx.Err() != nil || c.IsClosed()) && !errors.Is(err, ErrWrongSecret) {
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
		p.log.Warn("relay does not admit this node: peers cannot reach it through that relay; compare the files that joinSecretFile names here and at the relay",
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
