package daemon

import (
	"context"
	"log/slog"
	"time"

	"edgemesh/agent/control"
	"edgemesh/agent/describe"
	"edgemesh/agent/findings"
	"edgemesh/agent/observe"
	"edgemesh/internal/watchdog"
	"edgemesh/internal/wording"
)

var _ control.Backend = (*backend)(nil)

// backend answers the operator: status, ping, doctor. It changes nothing.
type backend struct {
	version, name string // of the agent and of this node
	started       time.Time
	level         *slog.LevelVar
	degraded      []control.Fallback // what this host did not provide at start
	doctor        *doctor
	pinger        pinger
	explainer     explainer
	calls         *watchdog.Loop
	observer      observe.Node // shows other members which paths this node uses, and queries them
}

// Status implements control.Backend.
func (b *backend) Status(all bool) control.Status {
	defer b.calls.Call("status")()
	s, d := b.paths(all), b.doctor
	s.Node, s.PeerID, s.Site, s.Fallbacks = b.name, d.id.String(), d.force.current().Self.Site, b.degraded
	s.Addresses, s.Pools, s.Findings = wording.Texts(d.kernel.addresses()), pools(d.kernel.pods, d.log), d.now()
	s.Upkeep = upkeepOf(d.upkeep, d.metered, time.Now())
	s.Problems = findings.Only(s.Findings, findings.Broken, findings.Warning)
	return s
}

// paths is the part of the status that changes from second to second.
func (b *backend) paths(all bool) control.Status {
	st := b.doctor.node.Status()
	used, idle := b.doctor.reach.peers(all)
	return control.Status{Version: b.version, StartedAt: b.started, NAT: describe.NAT(st), Relays: b.doctor.relays(st.Relays), Peers: used, Idle: idle}
}

// observed is what a map shows, each second while one is open: only the members in use.
func (b *backend) observed() control.Status {
	defer b.calls.Call("map")()
	s := b.paths(false)
	s.Findings = b.doctor.now()
	return s
}

// Doctor implements control.Backend.
func (b *backend) Doctor(ctx context.Context) []findings.Finding {
	defer b.calls.Call("doctor")()
	return b.doctor.Doctor(ctx)
}

// Ping implements control.Backend. One without end is not watched: it may wait for long between two probes.
func (b *backend) Ping(ctx context.Context, r control.PingRequest, each func(control.PingResult)) (control.PingReply, error) {
	if r.Count > 0 { // it ends by itself, as all others do
		defer b.calls.Call("ping")()
	}
	return b.pinger.Ping(ctx, r, each)
}

// Explain implements control.Backend.
func (b *backend) Explain(ctx context.Context, to string) ([]findings.Finding, error) {
	defer b.calls.Call("doctor NODE")()
	return b.explainer.Explain(ctx, to)
}

// Policies implements control.Backend.
func (b *backend) Policies(pod string) control.Policies {
	defer b.calls.Call("policy")()
	return b.doctor.kernel.policies.Status(pod)
}

// Observe implements control.Backend. What it takes from this node each second is watched (observed), not the client that it waits for.
func (b *backend) Observe(ctx context.Context, each func(any) error) error {
	return b.observer.Observe(ctx, each)
}

// LogLevel implements control.Backend.
func (b *backend) LogLevel() *slog.LevelVar { return b.level }
