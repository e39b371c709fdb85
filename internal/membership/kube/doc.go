// Package kube reads the membership from the API of a Kubernetes cluster (Nodes,
// MeshNodes, PodBlocks and the PodNetwork) and keeps this node's own entries there.
//
//	source.go    Source: what callers hold; it starts the goroutines below
//	loop.go      what comes in ──▶ known ──mesh.State──▶ caller; want ──▶ registrar
//	known.go     what is known: store.go one kind, resolve.go all of them (pure; claims/ which blocks count), blocks.go prefixes
//	feed.go      whether Nodes come from the API's Nodes or from NodeRecords; lessor.go (renewal/) whether a controller keeps these
//	history.go   which of the API's histories it comes from, kept across restarts
//	reflect.go   lists and watches one kind ──listed, event──▶ loop; proof.go: was the API really asked?
//	register.go  keeps the own entries: meshnode.go, claim.go (blocks) and status.go (whether
//	             this node serves); writer.go how its entries are written, deputy.go
//	             by whom where this node may not
//	confirm/     when pods may have addresses of the blocks that the snapshot names; rollout/ who may take over
//	trim.go      what is read of an object; client/ finds the API and sends requests, api/ the objects; errors.go
//
// Who owns what: known belongs to the goroutine in Start or Watch, which runs the
// loop. Each reflector and the registrar have their own goroutine, which owns their
// struct. They communicate by channels. Callers set and read values at any time
// (SetServing, SetRelay, Annotations) through a channel that holds the latest value, or
// an atomic. The only lock is the prover's, a leaf.
//
// An API that is unreachable, empty, old or lying takes nothing away from a node that
// works: a removal needs a proof. DESIGN.md has the rule.
package kube
