package sense

import (
	"net/netip"
	"strings"
	"testing"

	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/ladder"
)

func ep(s string) endpoint.Endpoint {
	proto, addr, _ := strings.Cut(s, " ")
	return endpoint.Endpoint{UDP: proto == "udp", Addr: netip.MustParseAddrPort(addr)}
}

func eps(ss ...string) (out []endpoint.Endpoint) {
	for _, s := range ss {
		out = append(out, ep(s))
	}
	return out
}

func TestJudge(t *testing.T) {
	local := eps("tcp 192.168.1.10:4001", "udp 192.168.1.10:4001", "tcp 5.5.1.1:4001", "udp 5.5.1.1:4001")
	for _, c := range []struct {
		seen      []endpoint.Endpoint
		symmetric bool
		want      ladder.NAT
	}{
		{nil, false, ladder.NATUnknown},
		{eps("tcp 5.5.1.1:4001", "udp 5.5.1.1:4001"), false, ladder.NATNone},
		{eps("tcp 9.9.9.9:4001", "udp 9.9.9.9:4001"), false, ladder.NATStable},
		{eps("tcp 9.9.9.9:4001", "udp 9.9.9.9:31234"), false, ladder.NATUnknown},
		{eps("udp 9.9.9.9:31234", "udp 9.9.9.9:31235"), true, ladder.NATRandom},
	} {
		if got := Judge(c.seen, local, c.symmetric); got != c.want {
			t.Errorf("seen at %v: %v, want %v", c.seen, got, c.want)
		}
	}
}
