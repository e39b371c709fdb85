package daemon

import (
	"fmt"
	"slices"

	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/agent/config"
	"edgemesh/agent/control"
	"edgemesh/agent/mesh"
	"edgemesh/tunnel/p2p/relayservice"
)

// relayLimits translates the configuration for p2p; nil means no relay.
func relayLimits(c config.Relay) *relayservice.Limits {
	if !c.Enabled {
		return nil
	}
	l := relayservice.Limits(c.Limits)
	return &l
}

// relayAddrs are the addresses others reach this node at as their relay, as the
// membership's relays have them.
func (d *daemon) relayAddrs() []string {
	var out []string
	for _, a := range d.node.RelayAddrs(d.cfg.Relay.Announce) {
		out = append(out, a.String()+"/p2p/"+d.id.String())
	}
	return out
}

// relayTeller tells the membership's source, where it can take that, at which
// addresses this node is a relay.
type relayTeller struct {
	set    func([]string)
	begun  bool
	latest []string
}

// tell passes addrs on when they changed. A relay without any address has no uplink
// right now, and is not one less for it.
func (r *relayTeller) tell(enabled bool, addrs []ma.Multiaddr) {
	var now []string
	if enabled {
		for _, a := range addrs {
			now = append(now, a.String())
		}
	}
	if r.begun && slices.Equal(r.latest, now) || enabled && len(now) == 0 {
		return
	}
	r.begun, r.latest = true, now
	r.set(slices.Clone(now))
}

// listedAsRelay says whether the membership has this node among the relays.
func (d *daemon) listedAsRelay(plan mesh.Plan) bool {
	return slices.ContainsFunc(plan.Relays, func(r mesh.Relay) bool { return r.PeerID == mesh.PeerID(d.id.String()) })
}

// tellRelay logs whether this node is a relay, and whether others know that.
func (d *daemon) tellRelay(plan mesh.Plan) {
	listed := d.listedAsRelay(plan)
	switch {
	case d.cfg.Relay.Enabled && listed:
		d.log.Info("this node is a relay", "addresses", d.relayAddrs())
	case d.cfg.Relay.Enabled:
		d.log.Warn("this node is a relay, but the membership's relays do not list it: add these addresses, or set memberRelays in the PodNetwork", "addresses", d.relayAddrs())
	case listed:
		d.log.Warn("the membership lists this node as a relay, but relay.enabled is not set in its configuration")
	}
}

// checkOwnRelay is doctor's look at this node as a relay.
func (d *daemon) checkOwnRelay(plan mesh.Plan) []control.Finding {
	listed := d.listedAsRelay(plan)
	switch {
	case !d.cfg.Relay.Enabled && listed:
		return []control.Finding{control.Brokenf("relay", "set relay: {enabled: true} in the agent's configuration and restart it, or take the addresses out of the membership's relays",
			"the membership lists this node as a relay, and it is none")}
	case !d.cfg.Relay.Enabled:
		return nil
	}
	st := d.node.Status()
	load := fmt.Sprintf("%d reservations, %d circuits", st.Reservations, st.Circuits)
	if !listed {
		return []control.Finding{control.Warningf("relay", fmt.Sprintf("add its addresses to the membership's relays: %v (in Kubernetes memberRelays: true in the PodNetwork does it)", d.relayAddrs()),
			"this node is a relay, but nobody knows: %s", load)}
	}
	return []control.Finding{control.Okayf("relay", "this node is a relay: %s", load)}
}
