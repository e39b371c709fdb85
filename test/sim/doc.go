// Package sim puts large clusters before the parts of an agent that a membership passes through, on one machine and
// without a network; and thousands of light members (package herd) before one relay, in a network namespace. Package churn plays
// what the ladder and the choice of relays do for 10,000 nodes over hours. `make sim` prints the figures; `make test-all` runs the
// short form, which looks for mistakes only.
//
//	world.go   clusters of any size
//	heap.go    what memory is held
package sim
