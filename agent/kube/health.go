package kube

import "time"

// health is whether this node serves its pods, and what the API is told of it.
type health struct {
	sustain  time.Duration // a failure is told when it has lasted for so long
	known    bool          // anything was said so far
	unserved error         // why the node does not serve, as the API is told
	failing  time.Time     // since when it does not, zero: it does
	cause    error         // why it does not
}

// serve notes whether the node serves. The first cause stands for those that
// follow from it.
func (h *health) serve(err error) {
	switch {
	case err == nil:
		h.known, h.unserved, h.failing = true, nil, time.Time{}
	case !h.known:
		h.known, h.unserved = true, err
	case h.unserved == nil && h.failing.IsZero():
		h.failing, h.cause = time.Now(), err
	}
}

// sustained reports a failure to the API once it lasts: a Node that is tainted and
// untainted at every repair would move pods back and forth.
func (h *health) sustained() error {
	if h.unserved != nil || h.failing.IsZero() {
		return nil
	}
	if left := h.sustain - time.Since(h.failing); left > 0 {
		return again{left}
	}
	h.unserved = h.cause
	return nil
}
