package members

import "errors"

var (
	// ErrNotMember means that the membership does not list the peer.
	ErrNotMember = errors.New("peer is not a member")
	// ErrQuarantined means that the peer is refused for a while (Gater.Quarantine).
	ErrQuarantined = errors.New("peer is quarantined")
)
