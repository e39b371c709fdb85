package packet

import "time"

const (
	// A payload that begins with one of these is the package's own; package flight has all others. 0x80 to 0x83 stay unused.
	kindChallenge = 0x84
	kindResponse  = 0x85
	ownLen        = 1 + 8 // and padding

	// maxPacket is the longest sealed packet that is taken, bytes.
	maxPacket = 9000
	// setupTimeout bounds offer and answer.
	setupTimeout = 5 * time.Second
)

// Path is the connection that sealed packets go beside, as its owner sees it. Sent, Received and Heard are called for every
// batch of packets, with a lock of this package held: they must not block, nor call back.
type Path interface {
	// Peer is the peer's name in logs, Addr where it is.
	Peer() string
	Addr() string
	// Sent counts bytes of sealed packets that were sent, Received those that arrived.
	Sent(bytes int)
	Received(bytes int)
	// Heard records that something arrived that is the package's own.
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
