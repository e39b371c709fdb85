package decide

import "errors"

var (
	// ErrBadOffer means that a peer's offer breaks the rules.
	ErrBadOffer = errors.New("bad offer")
	// ErrBadProbe means that a packet is not a probe.
	ErrBadProbe = errors.New("bad probe")
	// ErrBusy means that an offer is refused: another exchange is in progress.
	ErrBusy = errors.New("another exchange of offers is in progress")
	// ErrNoMember means that a stream does not come from another member.
	ErrNoMember = errors.New("not another member")
	// ErrUnconfirmed means that the peer may not have our offer in force.
	ErrUnconfirmed = errors.New("offer not confirmed")
)
