// Package kube is the membership as the API of a Kubernetes cluster has it: read
// from Nodes, MeshNodes, PodBlocks and the PodNetwork, with this node's own
// entries kept there.
//
//	source.go    Source: what callers hold; it starts the goroutines below
//	loop.go      what is heard ──▶ known ──mesh.State──▶ caller; want ──▶ registrar
//	known.go     what is known: store.go one kind, resolve.go all of them (pure), blocks.go prefixes
//	history.go   of which of the API's histories that is; memory.go keeps it across restarts
//	reflect.go   lists and watches one kind ──listed, event──▶ loop; proof.go: was the API really asked?
//	want.go      what the registrar needs to know
//	register.go  keeps the own entries: meshnode.go, claim.go (blocks), status.go and condition.go
//	health.go    whether this node serves; writer.go how its entries are written
//	client.go    requests; access.go finds the API; decode.go reads its answers; errors.go
//
// Who owns what: known belongs to the goroutine in Start or Watch, which runs the
// loop; each reflector and the registrar run in one of their own and own their struct.
// They tell each other by channels. What callers say and ask meanwhile (SetServing,
// SetRelay, Annotations) goes through a channel that holds the latest value, or an
// atomic. The only lock is the prover's, under which no other is taken.
//
// An API that is unreachable, empty, old or lying takes nothing away from a node that
// works: a removal needs a proof. DESIGN.md has the rule.
package kube
