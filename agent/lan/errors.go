package lan

import "errors"

var (
	// ErrBadOffer means that a peer's offer breaks the rules.
	ErrBadOffer = errors.New("bad offer")
	// ErrBadProbe means that a packet is no probe of a member.
	ErrBadProbe = errors.New("bad probe")
	// ErrBusy means that an offer is refused because an own one is under way.
	ErrBusy = errors.New("an own offer is under way")
	// ErrNoMember means that a stream is of no other member.
	ErrNoMember = errors.New("not another member")
)
