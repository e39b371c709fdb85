package daemon

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	"edgemesh/agent/findings"
	"edgemesh/internal/membership/mesh"
)

const forwardRemedy = "name the machines outside of the pod network there, and restart the agent"

// ignoredForward says which senders of `forward`, written under key, package host leaves out, and why. They are not a
// mistake of the file alone, and ranges may change while the agent runs: so a node that would lack nothing else starts.
func ignoredForward(h mesh.Host, key string) (out []string) {
	for i, p := range h.Forward.From {
		version := func(r netip.Prefix) bool { return r.Addr().Is6() == p.Addr().Is6() }
		n := slices.IndexFunc(h.ClusterCIDRs, p.Overlaps)
		switch {
		case n >= 0:
			out = append(out, fmt.Sprintf("%s.from[%d]: %s overlaps the cluster's range %s (podCIDRs), which may not come from outside", key, i, p, h.ClusterCIDRs[n]))
		case !slices.ContainsFunc(h.ClusterCIDRs, version):
			out = append(out, fmt.Sprintf("%s.from[%d]: %s is of an IP version that the cluster has no range of (podCIDRs)", key, i, p))
		}
	}
	return out
}

// logForward logs what of `forward`, written under key, has no effect.
func logForward(h mesh.Host, key string, log *slog.Logger) {
	for _, why := range ignoredForward(h, key) {
		log.Warn("nothing is forwarded for a sender of forward.from", "why", why, "remedy", forwardRemedy)
	}
}

// checkForward reports whom this node forwards for; nothing where it forwards for nobody.
func checkForward(h mesh.Host, key string) []findings.Finding {
	ignored := ignoredForward(h, key)
	switch {
	case len(h.Forward.From) == 0:
		return nil
	case len(ignored) > 0:
		return []findings.Finding{findings.Brokenf("forward", forwardRemedy, "nothing is forwarded for: %s", strings.Join(ignored, "; "))}
	}
	return []findings.Finding{findings.Okayf("forward", "from %v to ports %v of nodes and pods", h.Forward.From, h.Forward.Ports)}
}
