package enroll

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/seldom"
	"edgemesh/tunnel/p2p/admission/transcript"
	"edgemesh/tunnel/p2p/who/identity"
)

// parallel bounds the requests that are written at the same time.
const parallel = 16

// Edge is the node that sent a request, as it has proved.
type Edge struct {
	Node string // the name in its certificate
	Peer peer.ID
}

// Server is the controller's side.
type Server struct {
	roots    func(context.Context) (*x509.CertPool, error)
	write    func(context.Context, Edge, Request) Answer
	outcome  func(error) // nil: a request was proved
	log      *slog.Logger
	slots    chan struct{}
	reported seldom.Log
}

// NewServer returns a server that has write answer the requests of nodes with a certificate of roots, and reports every
// request to outcome.
func NewServer(roots func(context.Context) (*x509.CertPool, error), write func(context.Context, Edge, Request) Answer, outcome func(error), log *slog.Logger) *Server {
	return &Server{roots: roots, write: write, outcome: outcome, log: log, slots: make(chan struct{}, parallel)}
}

// Serve answers one request.
func (v *Server) Serve(s network.Stream) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.SetDeadline(time.Now().Add(patience)); err != nil {
		_ = s.Reset()
		return
	}
	edge, request, err := v.receive(ctx, s)
	if errors.Is(err, network.ErrReset) { // the node has found another way, or was started again
		v.log.Debug("a node ended its request", "peer", s.Conn().RemotePeer(), "from", s.Conn().RemoteMultiaddr(), "err", err)
		_ = s.Reset()
		return
	}
	v.outcome(err)
	var a Answer
	if err == nil {
		a, err = v.writeInTurn(ctx, edge, request)
	}
	if err != nil {
		a = refusal(err)
		if v.reported.Due(edge.Node + " refused") {
			v.log.Warn("a node's request is refused", "node", edge.Node, "peer", s.Conn().RemotePeer(), "from", s.Conn().RemoteMultiaddr(), "err", err)
		}
	}
	if reply(s, a) != nil {
		_ = s.Reset()
	}
}

// writeInTurn writes the request that edge has proved, a few at a time.
func (v *Server) writeInTurn(ctx context.Context, edge Edge, r Request) (Answer, error) {
	select {
	case v.slots <- struct{}{}:
		defer func() { <-v.slots }()
		return v.write(ctx, edge, r), nil
	case <-ctx.Done():
		return Answer{}, errors.New("the controller has too many requests; nodes try again")
	}
}

// refusal is err as the API would answer it.
func refusal(err error) Answer {
	a := Answer{Code: http.StatusUnauthorized}
	a.Body, _ = json.Marshal(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": a.Code,
		"reason": "Unauthorized", "message": err.Error()})
	return a
}

// receive has the peer prove who it is, and returns its request.
func (v *Server) receive(ctx context.Context, s network.Stream) (edge Edge, r Request, err error) {
	t, err := transcript.ForVerifier(s.Conn(), identity.EnrollProtocol)
	if err != nil {
		return edge, r, err
	}
	if err := t.SendChallenge(s); err != nil {
		return edge, r, err
	}
	m, err := readMessage(s)
	if err != nil {
		return edge, r, fmt.Errorf("read request: %w", err)
	}
	roots, err := v.roots(ctx)
	if err != nil {
		return edge, r, err
	}
	if edge.Node, err = check(t, m, roots, time.Now()); err != nil {
		return edge, r, err
	}
	edge.Peer = t.Prover
	if err := json.Unmarshal(m.request, &r); err != nil {
		return edge, r, fmt.Errorf("%w: request: %w", errMessage, err)
	}
	return edge, r, nil
}

// reply writes a, and ends the stream.
func reply(s network.Stream, a Answer) error {
	out, err := json.Marshal(a)
	if err == nil && len(out) > MaxAnswer {
		err = fmt.Errorf("%w: an answer of %d bytes", errMessage, len(out))
	}
	if err != nil {
		return err
	}
	if _, err := s.Write(appendField(nil, out)); err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	if err := s.CloseWrite(); err != nil {
		return err
	}
	_, _ = io.CopyN(io.Discard, s, 1) // until the edge has read it
	return nil
}
