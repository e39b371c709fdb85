package daemon

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"edgemesh/agent/control"
	"edgemesh/agent/describe"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/tunnel/p2p"
)

const (
	repairEvery    = 30 * time.Second       // how often kernel state is compared with the plan
	retryEvery     = 2 * time.Second        // the same after an error
	lookEvery      = 5 * time.Minute        // how often foreign rules are looked at, for status
	statusEvery    = 5 * time.Second        // the same while new pods get no network
	repairDebounce = 200 * time.Millisecond // from the first sign of a change to the repair
	repairRest     = 2 * time.Second        // least time between two repairs: other programs change the firewall often
)

// repairer compares kernel state and the plugin's files with the plan whenever the kernel
// reports a change, and periodically, so that a flushed firewall, a deleted bridge or a
// removed runtime directory is restored. It also reports the addresses of a node that is
// a relay, and its mesh addresses, which change with the kernel's.
type repairer struct {
	kernel *kernel
	node   *p2p.Node
	relay  config.Relay
	source interface {
		SetRelay(addrs []string)
		SetPlace(api.Place)
		SetServing(error)
	}
	socket     *control.Server
	followMesh func([]netip.Addr)
	log        *slog.Logger
}

// run repairs until ctx ends.
func (r repairer) run(ctx context.Context) {
	wait := repairEvery
	rested := time.Now() // no repair before
	looked := time.Now() // when foreign rules were looked at
	relay := relayReporter{reporter{set: r.source.SetRelay}}
	own := reporter{set: func(now []string) { r.source.SetPlace(api.Place{NAT: now[0], Addresses: now[1:]}) }}
	for {
		addrs := r.kernel.addresses()
		own.report(append([]string{r.node.Status().Kind.String()}, describe.Texts(addrs)...))
		r.followMesh(addrs)
		relay.report(r.relay.Enabled, r.node.RelayAddrs(r.relay.Announce))
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		case <-r.kernel.changed:
			select {
			case <-ctx.Done():
				return
			case <-time.After(max(repairDebounce, time.Until(rested))):
			}
		}
		err := r.kernel.apply(ctx)
		if err != nil && ctx.Err() == nil {
			r.log.Error("could not set kernel state; retrying", "every", retryEvery, "err", err)
		}
		if err := r.socket.Renew(); err != nil {
			r.log.Error("control socket unavailable: status, ping and doctor cannot reach this agent", "err", err)
		}
		r.kernel.repaired(err)
		if time.Since(looked) > lookEvery {
			r.kernel.look(ctx)
			looked = time.Now()
		}
		why := r.kernel.serving(err)
		r.source.SetServing(why)
		switch {
		case err != nil:
			wait = retryEvery
		case why != nil:
			wait = statusEvery
		default:
			wait = repairEvery
		}
		rested = time.Now().Add(repairRest)
	}
}
