// Package enroll lets a node have a controller write to the API where its own access does not suffice. The node proves who it
// is by the certificate that the platform gave it: kubelet's, or edgecore's of KubeEdge.
//
//	edge                                                   controller
//	   │ ──── opens a stream for /edgemesh/enroll/1 ───────────▶ │
//	   │ ◀──────────────────── challenge: 32 random bytes ────── │
//	   │ ──── request, certificates, signature ────────────────▶ │   each after its length
//	   │ ◀──────────────────────────── answer, after its length ─ │
//
// The certificate's key signs the transcript (package transcript), whose verifier is the controller, followed by the SHA-256 of
// the request: ECDSA or RSA-PSS with SHA-256, or Ed25519. Request and answer are JSON, the certificates DER, the node's own
// first. Lengths are two bytes, big-endian.
//
//	doc.go      this page
//	message.go  requests, answers, and how they are written
//	proof.go    what is signed, and who may have signed it
//	edge.go     the edge's side
//	serve.go    the controller's side
//	host.go     libp2p hosts of both
//	proxied.go  their dials through an HTTP proxy
//	stay.go     keeps the controller reachable at relays
//	seen.go     whether a relay sees a member
package enroll
