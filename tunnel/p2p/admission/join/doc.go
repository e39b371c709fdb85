// Package join proves to a relay that does not know the membership that a node knows the cluster's join secret.
//
//	member                                                relay
//	   │ ──── opens a stream for /edgemesh/join/1 ─────────▶ │
//	   │ ◀──────────────── challenge: 32 random bytes ────── │
//	   │ ──── n (1 byte), n proofs of 32 bytes each ───────▶ │   one proof for each secret in the member's file
//	   │ ◀──────────────── verdict: 1 byte ───────────────── │   0 accepted, 1 wrong secret
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
//	errors.go   errors that callers can distinguish
package join
