// Package flows simulates senders that share one line, on a clock of its own: what a congestion controller does alone, beside its
// own kind and beside the kernel's BBR and cubic, a minute of it in a tenth of a second.
//
//	sender ─ pacing, window ─ Line (link.Queue: rate, queue, loss, jitter, reordering; stalls, bursts of loss) ─ receiver
//	   └────────────── acknowledgements, RTT/2 later: newest packet, arrival time, bytes arrived ──────────────────┘
//
//	line.go      what a line does besides link.Queue: rates that vary, stalls, bursts of loss
//	run.go       the loop: send, receive, acknowledge, detect losses
//	sender.go    a sender: its controller, what it has to send, its acknowledgements
//	stranger.go  the kernel's BBR v1 and cubic, and a cubic flow inside a tunnel behind its CoDel
package flows
