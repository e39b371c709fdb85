package packet

import "time"

const (
	datagramVersion = 1
	offerLen        = 17
	answerLen       = 7
	exportLabel     = "EXPORTER-edgemesh-datagram"

	// A payload's first byte is the owner's below ownKinds.
	ownKinds    = 0x80
	kindProbe   = 0x80
	kindArrived = 0x81
	// 0x82 and 0x83 stay unused: peers of former versions ask and answer with them how long packets wait in each direction, and do
	// without answers.

	// Of sealed packets with repair only, which have no others but package flight's.
	kindChallenge = 0x84
	kindResponse  = 0x85

	// maxPacket is the longest sealed packet that is taken, bytes.
	maxPacket = 9000
	// setupTimeout bounds offer and answer.
	setupTimeout = 5 * time.Second
)

// Path is the connection that datagrams go beside, as its owner sees it. Sent, Received and Heard are called for every
// batch of packets, with a lock of this package held: they must not block, nor call back.
type Path interface {
	// Peer is the peer's name in logs, Addr where it is.
	Peer() string
	Addr() string
	// Sent counts bytes of datagrams that were sent, Received those that arrived.
	Sent(bytes int)
	Received(bytes int)
	// Heard records that something arrived that is not for the owner.
	Heard()
	// Carried is how many bytes were ever sent on the path, by streams too.
	Carried() uint64
	// Narrowed says that large packets vanish while small ones arrive: an MTU black hole.
	Narrowed()
	// Waited says, now and then, how long a packet that is sent now has waited for the path.
	Waited(d time.Duration)
	// Broken says that the path is useless, and why.
	Broken(why string)
}

// Sink takes the datagrams of one path from one peer. The calls come one after the other.
type Sink interface {
	// Datagram takes one; b is valid during the call only, and may be changed.
	Datagram(b []byte)
	// Flush says that no more came with those before.
	Flush()
	// Close is the last call.
	Close()
}
