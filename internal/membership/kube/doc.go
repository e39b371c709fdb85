// Package kube reads the membership from the API of a Kubernetes cluster (Nodes, MeshNodes, PodBlocks and the PodNetwork)
// and keeps this node's own entries there. A file uses those above it in this list, never those below.
//
//	errors.go     what callers and the parts below distinguish
//	config.go     who this node is, and where the API is; client/ finds it and sends requests, api/ are its objects
//	messages.go   what the goroutines send to each other
//	trim.go       what is kept of an object
//	store.go      what is known of one kind
//	blocks.go     prefixes; counted.go: which PodBlocks count
//	history.go    which of the API's histories all of it comes from, kept across restarts
//	feed.go       whether Nodes come from the API's Nodes or from NodeRecords
//	vouch.go      what a NodeRecord changes counts once the Node says the same
//	resolve.go    membership out of objects (pure)
//	known.go      what is known of all kinds ──mesh.State──▶; want.go: what it means for this node's entries
//	proof.go      did an API server answer, or a cache?
//	outage.go     was the cache cut off meanwhile?
//	reflect.go    lists and watches one kind ──listed, event──▶
//	lessor.go     watches the Lease of the NodeRecords' keeper ──kept──▶; renewal.go judges it
//	confirm.go    when pods may have addresses of the blocks that the snapshot names
//	writer.go     writes an entry; deputy.go: a controller writes it where this node may not
//	meshnode.go   the own MeshNode; claim.go: the own PodBlocks; status.go: whether this node serves
//	register.go   keeps these entries: want ──▶ writes ──registered──▶
//	loop.go       messages ──▶ known ──mesh.State──▶ caller, ──want──▶ registrar
//	source.go     Source: what callers hold; it starts the goroutines
//	follow.go     follows other kinds for callers
//	rollout.go    whether an agent that stands by may take over
//
// Who owns what: known and loop belong to the goroutine in Start or Watch. Each reflector, the lessor and the registrar
// have their own goroutine, which owns their struct. They communicate by channels. Callers set and read values at any time
// (SetServing, SetRelay, Annotations) through a channel that holds the latest value, or an atomic. The only lock is the
// prover's, a leaf.
//
// An API that is unreachable, empty, old or lying takes nothing away from a node that works: a removal needs a proof.
// DESIGN.md has the rule.
package kube
