package daemon

import (
	"context"
	"time"

	"edgemesh/agent/control"
)

const (
	repairEvery    = 30 * time.Second       // how often kernel state is compared with the plan
	retryEvery     = 2 * time.Second        // the same after an error
	lookEvery      = 5 * time.Minute        // how often foreign rules are looked at, for status
	statusEvery    = 5 * time.Second        // the same while new pods get no network
	repairDebounce = 200 * time.Millisecond // from the first sign of a change to the repair
	repairRest     = 2 * time.Second        // least time between two repairs: other programs change the firewall often
)

// repair compares kernel state and the plugin's files with the plan whenever the kernel
// reports a change, and periodically, so that a flushed firewall, a deleted bridge or a
// removed runtime directory is restored. It also reports the addresses of a node that is
// a relay, which change with the kernel's.
func (d *daemon) repair(ctx context.Context, ctl *control.Server) {
	wait := repairEvery
	rested := time.Now() // no repair before
	looked := time.Now() // when foreign rules were looked at
	relay := relayReporter{set: d.source.SetRelay}
	for {
		relay.report(d.cfg.Relay.Enabled, d.node.RelayAddrs(d.cfg.Relay.Announce))
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		case <-d.kernel.changed:
			select {
			case <-ctx.Done():
				return
			case <-time.After(max(repairDebounce, time.Until(rested))):
			}
		}
		err := d.kernel.apply(ctx)
		if err != nil && ctx.Err() == nil {
			d.log.Error("could not set kernel state; retrying", "every", retryEvery, "err", err)
		}
		if err := ctl.Renew(); err != nil {
			d.log.Error("control socket unavailable: status, ping and doctor cannot ask this agent", "err", err)
		}
		d.kernel.repaired(err)
		if time.Since(looked) > lookEvery {
			p, _ := d.force.plan()
			d.kernel.look(ctx, p.Host)
			looked = time.Now()
		}
		why := d.kernel.serving(err)
		d.source.SetServing(why)
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
