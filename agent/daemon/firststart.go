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
// start for which the API has no complete answer, a key that cannot be read, or a LAN inside the pod range. It serves from the first problem on.
type firstStart struct {
	dir   string // the runtime directory
	log   *slog.Logger
	level *slog.LevelVar

	mu      sync.Mutex // nothing else is locked while it is held
	node    string
	peerID  string
	source  string
	server  *control.Server
	finding findings.Finding
}

var _ control.Backend = (*firstStart)(nil)

// is notes which node this is, and where its membership comes from.
func (w *firstStart) is(node, peerID, source string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.node, w.peerID, w.source = node, peerID, source
}

// because notes why the agent waits for its first membership. connected: this node's own pods have their network meanwhile, for there is
// a snapshot, which has another key for it.
func (w *firstStart) because(err error, connected bool) {
	w.mu.Lock()
	source, id := w.source, w.peerID
	w.mu.Unlock()
	f := findings.Brokenf("membership", membershipRemedy(source),
		"the agent waits for its first membership, and pods of this node have no network until then: %s", wording.OneLine(err.Error()))
	if connected {
		f = findings.Brokenf("key", "restore identity.key from a backup; with the new key the node joins as soon as "+source+" has it",
			"this node reaches no other: the membership that it saved has another key for it than its own, %s, and %s does not have that yet: %s; its own pods have their network", id, source, wording.OneLine(err.Error()))
	}
	w.says(f)
}

// says notes what keeps the agent from its work.
func (w *firstStart) says(f findings.Finding) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.finding = f
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
	found := w.findings()
	w.mu.Lock()
	defer w.mu.Unlock()
	return control.Status{Node: w.node, PeerID: w.peerID, Addresses: []string{}, Relays: []control.RelayStatus{}, Peers: []control.PeerStatus{},
		Findings: found, Problems: found}
}

// Ping implements control.Backend.
func (w *firstStart) Ping(context.Context, control.PingRequest, func(control.PingResult)) (control.PingReply, error) {
	return control.PingReply{}, ErrWaiting
}

// Explain implements control.Backend.
func (w *firstStart) Explain(context.Context, string) ([]findings.Finding, error) {
	return w.findings(), nil
}

// Policies implements control.Backend.
func (w *firstStart) Policies(string) control.Policies {
	return control.Policies{Problem: ErrWaiting.Error()}
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
	return []findings.Finding{w.finding}
}
