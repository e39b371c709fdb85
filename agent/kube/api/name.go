package api

import (
	"net/netip"
	"strings"
)

// BlockName is the one name a PodBlock of p may have: the CIDR in canonical form
// with '.', ':' and '/' as dashes, e.g. 10-244-1-0-24 and fd00-10-244-1---64.
func BlockName(p netip.Prefix) string {
	return strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(p.Masked().String())
}
