package netcheck

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"edgemesh/agent/findings"
	"edgemesh/internal/wording"
)

// Probe is the outcome of one transport to one address, over one IP version.
type Probe struct {
	Family    string `json:"family"` // IPv4 or IPv6
	Transport string `json:"transport"`
	Answer
	Cause Cause `json:"cause,omitempty"` // "" for an answer
}

// Cause is why there was no answer.
type Cause string

// Causes, each with its own remedy.
const (
	NoName  Cause = "name"   // no name server says the address
	NoRoute Cause = "route"  // nothing leads from this host to it
	Closed  Cause = "closed" // that host refuses
	Silent  Cause = "silent" // nothing comes back
	Other   Cause = "other"  // what answers is not a relay, or the proxy fails
)

// causeOf classifies the error of a probe.
func causeOf(err error) Cause {
	var name *net.DNSError
	var late net.Error
	switch {
	case errors.As(err, &name):
		return NoName
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.ENETDOWN):
		return NoRoute
	case errors.Is(err, unix.ECONNREFUSED):
		return Closed
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &late) && late.Timeout():
		return Silent
	}
	return Other
}

// CheckNames is what to do about a relay whose name no name server says the address of.
const CheckNames = "check this host's name servers (/etc/resolv.conf), or list the relay's addresses in the membership beside its name"

// Remedy is what to do about a relay that does not answer. Where addresses fail differently, what is nearest to working counts;
// before that host, name servers that fail: the relay may have moved.
func (r Relay) Remedy() string {
	fails := func(c Cause) bool {
		return slices.ContainsFunc(r.Probes, func(p Probe) bool { return p.Cause == c })
	}
	remedies := []struct {
		cause  Cause
		remedy string
	}{
		{Other, "see what answers there: check the port in the membership, and the HTTP proxy if there is one"},
		{Closed, "start edgemesh-relay there, and check the port in the membership: that host answers, and nothing listens at this port"},
		{Silent, "check that that host is up, and open the port for TCP and UDP in the relay's firewall, its provider's and this site's"},
		{NoRoute, "bring up an uplink of this host, with an address and a default route of the relay's IP version; the relay's host is not the cause"},
		{NoName, CheckNames},
	}
	for _, x := range remedies {
		if !fails(x.cause) {
			continue
		}
		if fails(NoName) && x.cause != NoName && x.cause != NoRoute {
			return CheckNames + "; then " + x.remedy
		}
		return x.remedy
	}
	return "check that edgemesh-relay runs there, and that the membership has its addresses"
}

// Versions judges IP versions over which a relay does not answer, though it does over the other: nothing fails for good, but
// dials over the broken one cost time, and paths over it are missing. A host without an IP version lacks nothing.
func Versions(all []Relay) (out []findings.Finding) {
	for _, family := range []string{"IPv6", "IPv4"} {
		works := slices.ContainsFunc(all, func(r Relay) bool {
			return slices.ContainsFunc(r.Probes, func(p Probe) bool { return p.Family == family && p.Answered() })
		})
		for _, r := range all {
			var failed []string
			for _, p := range r.Probes {
				other := func(o Probe) bool { return o.Family != family && o.Transport == p.Transport && o.Answered() }
				if p.Family == family && !p.Answered() && p.Cause != NoName && p.Cause != NoRoute && slices.ContainsFunc(r.Probes, other) {
					failed = append(failed, fmt.Sprintf("%s at %s (%s)", strings.ToUpper(p.Transport), p.Addr, p.Error))
				}
			}
			if len(failed) == 0 {
				continue
			}
			remedy := fmt.Sprintf("repair %s at this site, or of the relay (its address in DNS, its firewall): no relay answers over it", family)
			if works {
				remedy = fmt.Sprintf("open these ports for %s in the relay's firewall and its provider's, or correct its address in DNS or the membership", family)
			}
			out = append(out, findings.Warningf("ip-version", remedy, "relay %s does not answer over %s, though it does over the other IP version: %s",
				r.PeerID, family, wording.List(failed)).About(r.PeerID))
		}
	}
	return out
}
