package sim

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/membership/mesh"
)

// PeerID makes up the peer ID of an Ed25519 key: the key's bytes inside an identity multihash. Nobody has the key.
func PeerID(r *rand.Rand) peer.ID {
	id := []byte{0x00, 0x24, 0x08, 0x01, 0x12, 0x20} // identity, 36 bytes; Ed25519, 32 bytes
	for range 4 {
		id = binary.LittleEndian.AppendUint64(id, r.Uint64())
	}
	return peer.ID(id)
}

// Block is the i-th block of 128 addresses in 10.0.0.0/8, which has room for 131,072.
func Block(i int) netip.Prefix {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], 10<<24|uint32(i)<<7)
	return netip.PrefixFrom(netip.AddrFrom4(a), 25)
}

// Cluster is the membership of n nodes named node-000000 and so on, each with a block, and of 24 relays. The same seed
// gives the same cluster.
func Cluster(n int, seed uint64) mesh.State {
	r := rand.New(rand.NewPCG(seed, 0))
	s := mesh.State{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Encryption: mesh.EncryptionAuto,
		Access: mesh.Access{HostAccess: mesh.HostAll}, Nodes: make([]mesh.Node, 0, n)}
	for i := range 24 {
		s.Relays = append(s.Relays, mesh.Relay{PeerID: mesh.PeerID(PeerID(r).String()),
			Addrs: []string{fmt.Sprintf("/ip4/5.5.0.%d/udp/4470/quic-v1", i+1), fmt.Sprintf("/ip4/5.5.0.%d/tcp/4470", i+1)}})
	}
	for i := range n {
		s.Nodes = append(s.Nodes, mesh.Node{Name: fmt.Sprintf("node-%06d", i), PeerID: mesh.PeerID(PeerID(r).String()), PodCIDRs: []netip.Prefix{Block(i)}})
	}
	return s
}
