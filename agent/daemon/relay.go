package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/agent/control"
	"edgemesh/internal/config"
	"edgemesh/tunnel/p2p"
	secret "edgemesh/tunnel/p2p/admission/join"
	"edgemesh/tunnel/p2p/base/proxy"
	"edgemesh/tunnel/p2p/relay/relayservice"
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
func relayAddrs(n *p2p.Node, announce []ma.Multiaddr, id peer.ID) []string {
	var out []string
	for _, a := range n.RelayAddrs(announce) {
		out = append(out, a.String()+"/p2p/"+id.String())
	}
	return out
}

// reporter tells the membership's source a list of addresses when it has changed.
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

// listedAsRelay reports whether the membership has this node among the relays.
func listedAsRelay(p plan, id peer.ID) bool {
	return slices.ContainsFunc(p.relays, func(r peer.AddrInfo) bool { return r.ID == id })
}

// reportRelay logs whether this node is a relay, and whether others know that.
func (b *backend) reportRelay(p plan) {
	listed := listedAsRelay(p, b.id)
	switch {
	case b.cfg.Relay.Enabled && listed:
		b.log.Info("this node is a relay", "addresses", relayAddrs(b.node, b.cfg.Relay.Announce, b.id))
	case b.cfg.Relay.Enabled:
		b.log.Warn("this node is a relay, but the membership does not list it: add these addresses to its relays, or set memberRelays in the PodNetwork", "addresses", relayAddrs(b.node, b.cfg.Relay.Announce, b.id))
	case listed:
		b.log.Warn("the membership lists this node as a relay, but it is not one: set relay.enabled in its configuration")
	}
}

// checkOwnRelay is doctor's look at this node as a relay.
func (b *backend) checkOwnRelay(p plan) []control.Finding {
	listed := listedAsRelay(p, b.id)
	switch {
	case !b.cfg.Relay.Enabled && listed:
		return []control.Finding{control.Brokenf("relay", "set relay: {enabled: true} in the agent's configuration and restart it, or take the addresses out of the membership's relays",
			"the membership lists this node as a relay, but it is not one")}
	case !b.cfg.Relay.Enabled:
		return nil
	}
	st := b.node.Status()
	load := fmt.Sprintf("%d reservations, %d circuits", st.Reservations, st.Circuits)
	if !listed {
		return []control.Finding{control.Warningf("relay", fmt.Sprintf("add its addresses to the membership's relays: %v (in Kubernetes: set memberRelays: true in the PodNetwork)", relayAddrs(b.node, b.cfg.Relay.Announce, b.id)),
			"this node is a relay, but the membership does not list it: %s", load)}
	}
	return []control.Finding{control.Okayf("relay", "this node is a relay: %s", load)}
}

// joinSecrets reads what relays without a membership ask for. The error names file and key.
func joinSecrets(cfg config.Config) ([]secret.Secret, error) {
	if cfg.JoinSecretFile == "" {
		return nil, nil
	}
	s, err := secret.Load(cfg.JoinSecretFile)
	if err != nil {
		return nil, &config.KeyError{Key: "joinSecretFile", Err: err}
	}
	return s, nil
}

// proxyOf returns the way through the HTTP proxy, nil if there is none. Addresses inside the mesh, if that is known, need
// none. The error names the key, or the variable.
func proxyOf(cfg config.Config, inside func(netip.Addr) bool) (*proxy.Way, error) {
	w, err := proxy.New(proxy.Config{URL: cfg.Proxy, Credentials: cfg.ProxyUser, Inside: inside, Getenv: os.Getenv})
	if err == nil && cfg.ProxyUser != "" && w != nil {
		if _, err := proxy.Credentials(cfg.ProxyUser); err != nil {
			return nil, &config.KeyError{Key: cfg.Key("proxyCredentials"), Err: err}
		}
	}
	switch {
	case err == nil:
		return w, nil
	case cfg.Proxy == "":
		return nil, &config.KeyError{Key: "$HTTPS_PROXY", Err: fmt.Errorf("%w; correct it, or set proxy", err)}
	}
	return nil, &config.KeyError{Key: cfg.Key("proxy"), Err: err}
}

// followJoinSecrets proves changed secrets from now on, until ctx ends.
func (d *daemon) followJoinSecrets(ctx context.Context) {
	secret.Watch(ctx, d.cfg.JoinSecretFile, nil, d.node.SetJoinSecrets, func(err error) {
		d.log.Error("join secret rejected: the last good one is used; without a good one relays will refuse this node once the secret is rotated",
			"err", fmt.Errorf("joinSecretFile: %w", err))
	})
}
