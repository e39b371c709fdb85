// Package join has a relay that does not list a node admit it: the node proves that it knows the cluster's join secret, or shows what a
// key that the relay pins has signed about it.
//
//	member                                                relay
//	   │ ──── opens a stream for /edgemesh/join/1 ─────────▶ │
//	   │ ◀──────────────── challenge: 32 random bytes ────── │
//	   │ ──── n (1 byte), n proofs of 32 bytes each ───────▶ │   one proof for each secret in the member's file
//	   │ ◀──────────────── verdict: 1 byte ───────────────── │   0 accepted, 1 wrong secret
//
//	   │ ──── opens a stream for /edgemesh/member/1 ───────▶ │
//	   │ ──── length (2), statement, of a bounded size ────▶ │   package signed has its form; the connection has shown the key in it
//	   │ ◀──────────────── length (1), why not ───────────── │   0: a member
//
// A proof is HMAC-SHA-256 (RFC 2104) with the secret as its key over the transcript (package transcript), whose verifier is
// the relay.
//
//	doc.go      this page
//	secret.go   the file of secrets
//	watch.go    its changes
//	proof.go    proofs
//	member.go   the member's side
//	verify.go   the relay's side; package gate admits who proves
//	show.go     statements, on both sides
//	errors.go   errors that callers can distinguish
package join
