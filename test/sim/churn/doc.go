// Package churn plays thousands of nodes by discrete events. Whatever decides is the agents' own code: the ladder of each
// pair on both sides (package ladder, which also says when to punch), and the choice of relays (package choice). What is made
// up is the world around them: distances, NATs, relays that take one handshake after the other, and faults. The clock is
// virtual, and a run is a function of its seed.
//
//	clock.go     the events that are to come
//	world.go     nodes, relays and what keeps them apart
//	relays.go    a node's connections to relays
//	pair.go      two nodes that talk, and their ladders
//	paths.go     the connections between two nodes
//	circuits.go  which relays circuits run through
//	faults.go    what goes wrong
//	count.go     what is measured
package churn
