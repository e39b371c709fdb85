package paths

import (
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/protocol"

	"edgemesh/tunnel/p2p/who/identity"
)

// spoken is a stream of a protocol.
type spoken struct {
	network.Stream
	proto protocol.ID
}

func (s spoken) Protocol() protocol.ID { return s.proto }

// What belongs to no lane is counted apart: it keeps a second path.
func TestStreamsOfLanes(t *testing.T) {
	c := &Conn{streams: newStreams()}
	for _, proto := range []protocol.ID{identity.StreamProtocol, identity.DatagramProtocol, identity.LANProtocol} {
		c.Wrap(spoken{proto: proto})
	}
	if all, lanes := c.Streams(); all != 3 || lanes != 2 {
		t.Errorf("%d streams, %d of lanes; want 3 and 2", all, lanes)
	}
}
