package mesh

import (
	"net/netip"
	"testing"
)

func TestLastAddr(t *testing.T) {
	for p, want := range map[string]string{"10.244.0.0/16": "10.244.255.255", "10.9.8.0/26": "10.9.8.63", "fd00::/127": "fd00::1", "10.0.0.1/32": "10.0.0.1"} {
		if got := LastAddr(netip.MustParsePrefix(p)); got.String() != want {
			t.Errorf("%s: %s, want %s", p, got, want)
		}
	}
}
