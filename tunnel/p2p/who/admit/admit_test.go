package admit

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/mesh"
)

// Of a list of who is banned, those are peers whose IDs it has; the rest are names.
func TestPeerIDs(t *testing.T) {
	_, a := keytest.New(t)
	_, b := keytest.New(t)
	ids, others := PeerIDs([]string{a.String(), "edge-1", "", b.String()})
	if !slices.Equal(ids, []peer.ID{a, b}) || !slices.Equal(others, []string{"edge-1", ""}) {
		t.Errorf("%v, %q", ids, others)
	}
}

func TestMembership(t *testing.T) {
	_, node := keytest.New(t)
	_, relay := keytest.New(t)
	nodes := []mesh.Node{{Name: "edge-1", PeerID: mesh.PeerID(node.String())}}
	relays := []mesh.Relay{{PeerID: mesh.PeerID(relay.String()), Addrs: []string{"/ip4/5.5.5.5/tcp/4470"}}}
	pods := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	m, err := Membership(nodes, relays, pods, Decode)
	if err != nil || len(m.Members) != 1 || m.Members[0].Name != "edge-1" || m.Members[0].ID != node ||
		len(m.Relays) != 1 || m.Relays[0].ID != relay || len(m.Relays[0].Addrs) != 1 || len(m.ClusterCIDRs) != 1 {
		t.Errorf("%+v, %v", m, err)
	}
	for _, c := range []struct {
		nodes  []mesh.Node
		relays []mesh.Relay
		want   string
	}{
		{[]mesh.Node{{Name: "edge-2", PeerID: "rubbish"}}, nil, `node edge-2: peer ID "rubbish"`},
		{nil, []mesh.Relay{{PeerID: "rubbish"}}, `relay: peer ID "rubbish"`},
		{nil, []mesh.Relay{{PeerID: relays[0].PeerID, Addrs: []string{"5.5.5.5"}}}, `address "5.5.5.5"`},
	} {
		if _, err := Membership(c.nodes, c.relays, pods, Decode); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %s", err, c.want)
		}
	}
}
