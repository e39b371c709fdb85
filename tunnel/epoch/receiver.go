package epoch

// Receiver decides which carriers of one lane of one sender have to wait. It is not safe for concurrent use; the zero
// value is ready for use.
type Receiver struct {
	nonce uint64          // the sender's process
	live  map[uint64]bool // epochs of that process being received
	held  map[uint64]bool // epochs whose frames wait
	over  uint64          // the highest epoch that has ended
}

// Begin notes a carrier's HELLO. Another nonce is another process of the peer: its epochs count from 1 again and wait for
// nothing of the old ones.
func (r *Receiver) Begin(c Carrier) {
	if r.nonce != c.Nonce || r.live == nil {
		*r = Receiver{nonce: c.Nonce, live: map[uint64]bool{}, held: map[uint64]bool{}}
	}
	r.live[c.Epoch] = true
}

// Hold notes that frames of c are here, or its end, and may have to wait. Release ends that.
func (r *Receiver) Hold(c Carrier) {
	if r.nonce == c.Nonce {
		r.held[c.Epoch] = true
	}
}

// Release notes that frames of c wait no longer.
func (r *Receiver) Release(c Carrier) {
	if r.nonce == c.Nonce {
		delete(r.held, c.Epoch)
	}
}

// MustWait reports whether c has to wait for the carrier before it, and whether its patience counts: it does not while
// that one waits itself, so that no carrier overtakes another that came a moment earlier.
func (r *Receiver) MustWait(c Carrier) (wait, counts bool) {
	wait = c.After != 0 && r.nonce == c.Nonce && (r.live[c.After] || r.over < c.After)
	return wait, wait && !r.held[c.After]
}

// Live reports whether a carrier has more to say.
func (r *Receiver) Live() bool { return len(r.live) > 0 }

// End notes that a carrier has nothing more to say: MARK, end or error.
func (r *Receiver) End(c Carrier) {
	if r.nonce != c.Nonce || !r.live[c.Epoch] {
		return
	}
	delete(r.live, c.Epoch)
	r.over = max(r.over, c.Epoch)
}
