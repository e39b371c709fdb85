package observe

// Event is what the observer's side has heard of one member. The last one of a member holds.
type Event struct {
	Node   string  `json:"node"`
	PeerID string  `json:"peerID"`
	Site   string  `json:"site,omitempty"`
	Self   bool    `json:"self,omitempty"`   // it is this node
	All    bool    `json:"all,omitempty"`    // of this node: it is an observer
	Report *Report `json:"report,omitempty"` // nil: it has reported nothing yet, or Error says why it reports no more
	Error  string  `json:"error,omitempty"`
	Gone   bool    `json:"gone,omitempty"` // it has left the membership
}
