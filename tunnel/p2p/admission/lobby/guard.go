package lobby

import (
	"errors"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"

	"edgemesh/tunnel/p2p/admission/streamguard"
)

// maxStreams bounds a guest's streams: identify's, which is refused, and the circuit's.
const maxStreams = 8

// errGuest is the end of a stream that a guest may not have.
var errGuest = errors.New("lobby: the peer is not a member")

// Guard wraps a host's resource manager: of peers that are not served only requests for a circuit pass. The relay's ACL
// refuses all of these but one to a controller.
func Guard(rm network.ResourceManager, served func(peer.ID) bool) network.ResourceManager {
	return streamguard.Wrap(rm, streamguard.Rules{Served: served, Protocol: proto.ProtoIDv2Hop, Most: maxStreams,
		TooMany: errGuest, Otherwise: func(peer.ID) error { return errGuest }})
}
