package endpoint

import (
	"net/netip"
	"slices"
	"testing"

	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

func TestTreatAsPublic(t *testing.T) {
	old := manet.Private4
	t.Cleanup(func() { manet.Private4 = old })
	v6 := netip.MustParsePrefix("fd00::/8")
	ignored := TreatAsPublic([]netip.Prefix{
		netip.MustParsePrefix("10.20.0.0/16"), netip.MustParsePrefix("192.168.0.0/16"), v6,
	})
	if !slices.Equal(ignored, []netip.Prefix{v6}) {
		t.Errorf("ignored %v, want %v", ignored, v6)
	}
	for addr, public := range map[string]bool{
		"10.20.0.0": true, "10.20.255.255": true, "192.168.1.1": true, "5.5.5.5": true,
		"10.19.255.255": false, "10.21.0.0": false, "10.0.0.1": false, "10.255.0.1": false,
		"172.16.0.1": false, "127.0.0.1": false, "100.64.1.1": false,
	} {
		if got := manet.IsPublicAddr(ma.StringCast("/ip4/" + addr + "/tcp/1")); got != public {
			t.Errorf("%s public: %t, want %t", addr, got, public)
		}
	}
}
