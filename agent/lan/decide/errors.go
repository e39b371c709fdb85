package decide

import "errors"

var (
	// ErrBadOffer means that a peer's offer breaks the rules.
	ErrBadOffer = errors.New("bad offer")
	// ErrBadProbe means that a packet is no probe of a member.
	ErrBadProbe = errors.New("bad probe")
	// ErrBusy means that an offer is refused because another exchange is under way.
	ErrBusy = errors.New("another exchange of offers is under way")
	// ErrNoMember means that a stream is of no other member.
	ErrNoMember = errors.New("not another member")
	// ErrUnconfirmed means that the peer may not have taken our offer.
	ErrUnconfirmed = errors.New("offer not confirmed")
)
