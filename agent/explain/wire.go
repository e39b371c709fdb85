package explain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"edgemesh/agent/findings"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wording"
)

const (
	// Bounds of what a member may send, in bytes, and of how long a query may take.
	maxQuery    = 1 << 10
	maxAnswer   = 64 << 10
	maxFindings = 64
	exchange    = 5 * time.Second
	// How often a member may send a query, and how many are answered at a time: each costs a look at the firewall.
	queryEvery  = time.Second
	queryBurst  = 4
	mostAnswers = 2
)

var (
	errOften = errors.New("too many queries: try again in a few seconds")
	errOther = errors.New("the query is not about a pair with its sender")
)

// Stream is a stream to or from a member, authenticated and encrypted.
type Stream interface {
	io.ReadWriter
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
	CloseWrite() error
	Reset()
}

// query is for what happens to packets between two addresses, one of the sender and one of the receiver.
type query struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// reply has what was found, or why nothing was looked at.
type reply struct {
	Findings []findings.Finding `json:"findings,omitempty"`
	Error    string             `json:"error,omitempty"`
}

// fetch gets from the agent of another member what it sees on its side.
func fetch(ctx context.Context, a Agent, to mesh.Node, q query) ([]findings.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, exchange)
	defer cancel()
	s, err := a.Open(ctx, to)
	if err != nil {
		return nil, err
	}
	defer s.Reset()
	defer context.AfterFunc(ctx, s.Reset)()
	if err := json.NewEncoder(s).Encode(q); err != nil {
		return nil, fmt.Errorf("send the query: %w", err)
	}
	var r reply
	if err := json.NewDecoder(io.LimitReader(s, maxAnswer)).Decode(&r); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if r.Error != "" {
		return nil, errors.New(wording.Foreign(r.Error, 1<<10))
	}
	for i, f := range r.Findings {
		if !slices.Contains([]findings.Severity{findings.OK, findings.Skipped, findings.Note, findings.Warning, findings.Broken}, f.Severity) {
			f.Severity = findings.Warning
		}
		r.Findings[i] = f.Bounded()
	}
	return r.Findings[:min(len(r.Findings), maxFindings)], nil
}

// Answers answers members' queries.
type Answers struct {
	agent Agent
	busy  chan struct{}

	mu    sync.Mutex // a leaf
	often map[mesh.PeerID]*rate.Limiter
}

// NewAnswers returns what answers for an agent.
func NewAnswers(a Agent) *Answers {
	return &Answers{agent: a, busy: make(chan struct{}, mostAnswers), often: map[mesh.PeerID]*rate.Limiter{}}
}

// Answer answers one query of a member. It owns the stream.
func (a *Answers) Answer(ctx context.Context, id mesh.PeerID, s Stream) error {
	ctx, cancel := context.WithTimeout(ctx, exchange)
	defer cancel()
	deadline, _ := ctx.Deadline()
	_ = s.SetReadDeadline(deadline)
	_ = s.SetWriteDeadline(deadline)
	var q query
	err := json.NewDecoder(io.LimitReader(s, maxQuery)).Decode(&q)
	if err != nil {
		s.Reset()
		return fmt.Errorf("read the query: %w", err)
	}
	var r reply
	if r.Findings, err = a.look(ctx, id, q); err != nil {
		r.Error = err.Error()
	}
	if err := json.NewEncoder(s).Encode(r); err != nil {
		s.Reset()
		return fmt.Errorf("answer: %w", err)
	}
	return s.CloseWrite()
}

func (a *Answers) look(ctx context.Context, id mesh.PeerID, q query) ([]findings.Finding, error) {
	plan, _ := a.agent.Plan()
	i := slices.IndexFunc(plan.Nodes, func(n mesh.Node) bool { return n.PeerID == id && n.Name != plan.Self.Name })
	from, err := netip.ParseAddr(q.From)
	to, err2 := netip.ParseAddr(q.To)
	if i < 0 || err != nil || err2 != nil || from.Zone() != "" || to.Zone() != "" {
		return nil, errOther
	}
	if !a.may(plan, id) {
		return nil, errOften
	}
	select {
	case a.busy <- struct{}{}:
		defer func() { <-a.busy }()
	default:
		return nil, errOften
	}
	return answer(ctx, a.agent, plan.Nodes[i], from, to), nil
}

// may counts a query. Who is no longer a member is forgotten.
func (a *Answers) may(plan mesh.Plan, id mesh.PeerID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.often) > len(plan.Nodes) {
		for p := range a.often {
			if !slices.ContainsFunc(plan.Nodes, func(n mesh.Node) bool { return n.PeerID == p }) {
				delete(a.often, p)
			}
		}
	}
	if a.often[id] == nil {
		a.often[id] = rate.NewLimiter(rate.Every(queryEvery), queryBurst)
	}
	return a.often[id].Allow()
}
