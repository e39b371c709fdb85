package daemon

import (
	"log/slog"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
)

// relayAddrs are the addresses others reach this node at as their relay, as the
// membership's relays have them.
func relayAddrs(addrs []ma.Multiaddr, id peer.ID) []string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String()+"/p2p/"+id.String())
	}
	return out
}

// reporter passes a list of addresses to the membership's source when it has changed.
type reporter struct {
	set    func([]string)
	begun  bool
	latest []string
}

func (r *reporter) report(now []string) {
	if r.begun && slices.Equal(r.latest, now) {
		return
	}
	r.begun, r.latest = true, now
	r.set(slices.Clone(now))
}

// relayReporter reports at which addresses this node is a relay.
type relayReporter struct{ reporter }

// report reports addrs when they have changed. A relay without any address only has no
// uplink now; it stays a relay.
func (r *relayReporter) report(enabled bool, addrs []ma.Multiaddr) {
	var now []string
	if enabled {
		for _, a := range addrs {
			now = append(now, a.String())
		}
	}
	if enabled && len(now) == 0 {
		return
	}
	r.reporter.report(now)
}

// reportRelay logs whether this node is a relay, and whether others know that.
func reportRelay(enabled, listed bool, addrs []string, log *slog.Logger) {
	switch {
	case enabled && listed:
		log.Info("this node is a relay", "addresses", addrs)
	case enabled:
		log.Warn("this node is a relay, but the membership does not list it: add these addresses to its relays, or set memberRelays in the PodNetwork", "addresses", addrs)
	case listed:
		log.Warn("the membership lists this node as a relay, but it is not one: set relay.enabled in its configuration")
	}
}
