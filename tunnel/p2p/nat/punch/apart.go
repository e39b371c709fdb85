package punch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"edgemesh/tunnel/p2p/base/endpoint"
)

// ErrApart means that the two nodes have no IP version in common: no dial can succeed until one of them gets an address.
var ErrApart = errors.New("no IP version in common")

// version is an internet that addresses are of: a site's own IPv6 addresses lead to no other site.
type version string

const (
	ipv4  version = "IPv4"
	ipv6  version = "IPv6"
	local version = "IPv6 of its own site (ULA)"
)

// versions are those of the addresses that one side offers.
func versions(eps []endpoint.Endpoint, nat64 bool) []version {
	has := map[version]bool{ipv4: nat64}
	for _, e := range eps {
		switch ip := e.Addr.Addr(); {
		case ip.Is4():
			has[ipv4] = true
		case ip.IsPrivate():
			has[local] = true
		default:
			has[ipv6] = true
		}
	}
	return slices.DeleteFunc([]version{ipv4, ipv6, local}, func(v version) bool { return !has[v] })
}

// apart returns an error if the two sides have no IP version in common, and notes that. A side that offers nothing may have
// any.
func (a *Attempts) apart(mine, theirs offer, eps []endpoint.Endpoint) error {
	here, there := versions(endpoints(mine.Addrs, maxOffer), mine.NAT64), versions(eps, theirs.NAT64)
	if len(here) == 0 || len(there) == 0 || slices.ContainsFunc(here, func(v version) bool { return slices.Contains(there, v) }) {
		return nil
	}
	why := fmt.Sprintf("%s: %s here, %s there", ErrApart, list(here), list(there))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.past.add(outcome{at: time.Now(), missing: slices.Clone(theirs.Want), apart: why}, len(theirs.Want))
	return fmt.Errorf("%w: %s here, %s there", ErrApart, list(here), list(there))
}

func list(all []version) string {
	var out []string
	for _, v := range all {
		out = append(out, string(v))
	}
	return strings.Join(out, " and ")
}
