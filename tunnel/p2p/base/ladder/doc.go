// Package ladder decides, for one peer, which paths to make, which to use and which to give up. It is pure: a Machine does
// no I/O, has no clock and no goroutine. It takes events with their time, answers with actions, and says when it wants to
// be woken. DESIGN.md draws its states.
//
//	event.go    the events and the actions
//	apply.go    what each event changes
//	machine.go  the states, and the order of things after every event
//	path.go     one path: proven or not, silent or not
//	rest.go     how long an idle path is left alone
//	choose.go   which path each lane uses
//	open.go     the path of a stream that is being opened; pending while there is none
//	punch.go    when direct paths are tried
package ladder
