package main

import (
	"slices"
	"testing"
)

// Addresses without a peer ID are of one relay if their host is the same.
func TestRelaysOf(t *testing.T) {
	got, err := relaysOf([]string{"/ip4/5.5.5.5/tcp/1", "/ip4/6.6.6.6/tcp/1", "/ip4/5.5.5.5/udp/1/quic-v1", "/ip4/5.5.5.5/tcp/2/p2p/12D3KooW81B21XCaX87177B98a21b11Y7272X8h8911AX9C119Yf", "/ip4/6.6.6.7/tcp/2/p2p/12D3KooW81B21XCaX87177B98a21b11Y7272X8h8911AX9C119Yf"})
	if err != nil || len(got) != 3 || !slices.Equal(got[0].Addrs, []string{"/ip4/5.5.5.5/tcp/1", "/ip4/5.5.5.5/udp/1/quic-v1"}) ||
		got[1].Addrs[0] != "/ip4/6.6.6.6/tcp/1" || got[2].PeerID != "12D3KooW81B21XCaX87177B98a21b11Y7272X8h8911AX9C119Yf" || len(got[2].Addrs) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := relaysOf([]string{"/ip4/5.5.5.5"}); err == nil {
		t.Error("an address without a port is good")
	}
}
