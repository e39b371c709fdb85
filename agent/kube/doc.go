// Package kube is the membership as the API of a Kubernetes cluster has it: read
// from Nodes, MeshNodes, PodBlocks and the PodNetwork, with this node's own
// entries kept there.
//
//	reflect.go   list and watch one kind ──listed, event──▶ loop.go  what is known ──mesh.State──▶ caller
//	proof.go     was the API really asked?                  store.go one kind; resolve.go all of them
//	register.go  the own MeshNode          ◀──────want───── loop.go
//	claim.go     the own PodBlocks; status.go the MeshNode's status; condition.go the own Node's
//	history.go   is it the API's history that is known? memory.go keeps it over restarts
//
// An API that is away, empty, old or lying takes nothing away from a node that
// works: a removal needs a proof. DESIGN.md has the rule.
package kube
