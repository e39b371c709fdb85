// Package join admits members at a relay that does not know the membership: a member proves that it knows the cluster's
// join secret.
//
//	member                                                relay
//	   │ ──── opens a stream for /edgemesh/join/1 ─────────▶ │
//	   │ ◀──────────────── challenge: 32 random bytes ────── │
//	   │ ──── n (1 byte), n proofs of 32 bytes each ───────▶ │   one proof for each secret in the member's file
//	   │ ◀──────────────── verdict: 1 byte ───────────────── │   0 accepted, 1 wrong secret
//
// A proof is HMAC-SHA-256 (RFC 2104) with the secret as its key over
//
//	"/edgemesh/join/1" 00 | length of the relay's ID, ID | length of the member's ID, ID | session: 32 | challenge: 32
//
// The session is the connection's tls-exporter channel binding (RFC 9266). So a proof counts for these two peers, on this
// connection, once: whoever sees it elsewhere, or is given it by a member, can do nothing with it. Lengths are two bytes,
// big-endian.
//
//	doc.go      this page
//	secret.go   the file of secrets
//	watch.go    its changes
//	proof.go    proofs, and the message that carries them
//	member.go   the member's side
//	door.go     the relay's side
//	guests.go   who waits, who is in
//	places.go   who may wait
//	serve.go    the relay's side of the protocol
//	guard.go    what a peer may use before it is in
//	errors.go   errors that callers can tell apart
package join
