// Package relays keeps this node connected to the membership's relays. It measures them, holds reservations at those it
// has chosen, notices when one dies, and exchanges with peers which relays each side uses. The circuits to a peer, and
// the paths on them, are the caller's.
//
//	doc.go       this page
//	watch.go     starts it all; when relays are pinged: circuits fall silent, this host has slept
//	set.go       all relays: what is chosen, and what callers ask of one
//	report.go    what peers are sent about relays, and what they send
//	seen.go      where relays see this node
//	witness.go   where they see peers
//	crowded.go   which of them have more than their share of reservations
//	run.go       one relay: connected as long as it is wanted, measured now and then otherwise
//	session.go   from the first connection to the last: reserve, renew, dial the missing transport
//	status.go    what an operator is shown
//	ping.go      a connection's round-trip time, and whether the relay still answers on it
//	dial.go      one round of dials over all transports
//	lead.go      where members are many: TCP first
//	keepalive.go  how long idle TCP connections may be silent
//	remember.go  what was learned of that, by place, across restarts
//	beside.go    and QUIC as long as something needs it
//	channel.go   channels at them, for what they forward
//	ports.go     from which ports: the listening ones, or others
//	client.go    one relay: its connections, and the outcome of the last attempt
//	state.go     what is wanted of a relay, what came of it, and the connections to it
//	config.go    what is handed in, and shared by all clients
//	lifetime.go  how long a proxy lets connections live
//	choice/      the decisions, pure
//
// Locks: whoever calls may hold locks of its own; while a lock of this package is held, nothing outside of it is called
// but the log. Set.mu, Seen.mu, Reports.mu and those in state.go are leaves: none is taken while another is held.
//
// Waiting: a client's own goroutine sleeps on its wake slot; whoever else waits for a connection or for the outcome of an
// attempt does so by common.changed, which is broadcast whenever either changes.
package relays
