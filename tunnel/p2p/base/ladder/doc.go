// Package ladder decides, for one peer, which paths to make, which to use and which to give up. It is pure: a Machine does
// no I/O, has no clock and no goroutine. It takes events with their time, answers with actions, and says when it wants to
// be woken. DESIGN.md draws its states.
//
// A file names only what those below it have:
//
//	apply.go    what each event changes
//	handle.go   the order of things after every event
//	view.go     what can be seen of the peer from outside
//	punch.go    when direct paths are tried
//	choose.go   which path each lane uses
//	event.go    the events
//	machine.go  the state
//	open.go     the path of a stream that is being opened; pending while there is none
//	path.go     one path: proven or not, silent or not
//	spell.go    traffic: a burst, steady or bulk
//	rest.go     how long an idle path is left alone
//	retry.go    when attempts to get direct paths follow each other
//	nat.go      kinds of NAT
//	action.go   the actions
//	link.go     the words: time, transports, lanes
package ladder
