package decide

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"

	"edgemesh/internal/membership/mesh"
)

// session is the key that two offers make.
type session struct {
	id       uint64
	out, in  []byte // keys of what we send and of what we receive
	lastSeen map[trackKey]uint64
	taken    [2][kinds]uint32 // numbers of the last forwarded probes, by IP version and kind; 0: none
}

// newSession derives the session from the initiator's and the responder's secret.
// initiator says which of them we are. In the key derivation they are called opener and
// answerer, as in the first release.
func newSession(first, second Offer, firstID, secondID mesh.PeerID, initiator bool) *session {
	master := sum(append(append([]byte(nil), first.Secret...), second.Secret...), []byte("edgemesh lan 1\x00"+string(firstID)+"\x00"+string(secondID)))
	s := &session{out: sum(master, []byte("opener")), in: sum(master, []byte("answerer")), lastSeen: map[trackKey]uint64{}}
	if !initiator {
		s.out, s.in = s.in, s.out
	}
	s.id = binary.BigEndian.Uint64(sum(master, []byte("id")))
	return s
}

// sum is the HMAC-SHA256 of data.
func sum(key, data []byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write(data)
	return m.Sum(nil)
}
