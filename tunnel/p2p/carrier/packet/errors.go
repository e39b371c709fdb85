package packet

import (
	"errors"

	"golang.org/x/sys/unix"
)

var (
	// ErrNoDatagrams means that nothing can be sent beside a connection now.
	ErrNoDatagrams = errors.New("nothing can be sent beside the connection")

	errBadSetup = errors.New("malformed offer or answer")
	// errEnded is the end of a path's connection, or of the path by the peer.
	errEnded = errors.New("path ended")
	// errReplaced is the end of a path whose peer has begun others.
	errReplaced = errors.New("path replaced")

	// errOffers is the refusal of a peer that offers too many paths.
	errOffers = errors.New("too many paths offered")

	// errOffering is the end of an offer while there is another one to the same peer.
	errOffering = errors.New("another path to the peer is being agreed on")

	// errMute means that no packet passes any longer.
	errMute = errors.New("no packet passes")

	// errWorse means that a circuit carries datagrams better.
	errWorse = errors.New("packets beside it are lost, or take longer")
	// errNotYet is the refusal of an offer on a circuit.
	errNotYet = errors.New("the peer is starting, or not connected to the relay over UDP")
	// errUnused is the end of a path through a relay that nothing was sent with.
	errUnused = errors.New("not used")

	// errTooLarge means that the interface refused a packet of the size in use.
	errTooLarge = errors.New("interface refuses the size")
)

// isTooLarge reports whether a packet is larger than the interface takes.
func isTooLarge(err error) bool { return errors.Is(err, unix.EMSGSIZE) }

// isNoTrain reports whether a train was refused because the interface cannot cut it: EIO without checksum offload,
// EINVAL with some tunnels.
func isNoTrain(err error) bool { return errors.Is(err, unix.EIO) || errors.Is(err, unix.EINVAL) }
