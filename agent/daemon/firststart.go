package daemon

import (
	"context"
	"log/slog"
	"sync"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/internal/wording"
)

// firstStart answers the operator while the agent has no membership to start with: a first
// start for which the API has no complete answer. It serves from the first problem on.
type firstStart struct {
	dir    string // the runtime directory
	node   string
	peerID string
	source string
	log    *slog.Logger
	level  *slog.LevelVar

	mu      sync.Mutex // nothing else is locked while it is held
	server  *control.Server
	problem error
}

var _ control.Backend = (*firstStart)(nil)

// because notes why the agent waits.
func (w *firstStart) because(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problem = err
	if w.server != nil {
		return
	}
	var failed error
	if w.server, failed = control.Serve(w.dir, w, w.log); failed != nil {
		w.log.Error("control socket unavailable: status and doctor cannot say what the agent waits for", "err", failed)
	}
}

// end stops answering: the agent itself does that from now on.
func (w *firstStart) end() error {
	w.mu.Lock()
	server := w.server
	w.server = nil
	w.mu.Unlock()
	if server == nil {
		return nil
	}
	return server.Close() // waits for requests, which take the lock
}

// Status implements control.Backend.
func (w *firstStart) Status(bool) control.Status {
	return control.Status{Node: w.node, PeerID: w.peerID, Addresses: []string{}, Relays: []control.RelayStatus{}, Peers: []control.PeerStatus{},
		Findings: w.findings(), Problems: w.findings()}
}

// Ping implements control.Backend.
func (w *firstStart) Ping(context.Context, control.PingRequest, func(control.PingResult)) (control.PingReply, error) {
	return control.PingReply{}, ErrWaiting
}

// Explain implements control.Backend.
func (w *firstStart) Explain(context.Context, string) ([]findings.Finding, error) {
	return w.findings(), nil
}

// Observe implements control.Backend.
func (w *firstStart) Observe(context.Context, func(any) error) error { return ErrWaiting }

// LogLevel implements control.Backend.
func (w *firstStart) LogLevel() *slog.LevelVar { return w.level }

// Doctor implements control.Backend.
func (w *firstStart) Doctor(context.Context) []findings.Finding { return w.findings() }

func (w *firstStart) findings() []findings.Finding {
	w.mu.Lock()
	defer w.mu.Unlock()
	return []findings.Finding{findings.Brokenf("membership", membershipRemedy(w.source),
		"the agent waits for its first membership, and pods of this node have no network until then: %s", wording.OneLine(w.problem.Error()))}
}
