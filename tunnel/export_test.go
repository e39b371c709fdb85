package tunnel

// Taken is how many bytes of the stream lane to a peer were taken, by whatever carries it.
func (t *Tunnel) Taken(id PeerID) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.peers[id].chooser.taken.Load()
}
