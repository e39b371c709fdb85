package churn

import "time"

// noticeFirst, and up to noticeMore beside it, is how long it takes until an idle connection to a relay is found dead: keep-alives of 15 and 30 s.
const noticeFirst, noticeMore = 10 * time.Second, 35 * time.Second

// Fault is something that goes wrong for a while.
type Fault struct {
	Name       string
	At, For    time.Duration
	Begin, End func(w *World)
}

// RelayLost is a relay without power.
func RelayLost(r int, at, d time.Duration) Fault {
	return Fault{"relay lost", at, d, func(w *World) { w.relayOff(r, noticeFirst, noticeMore) }, func(w *World) { w.relays[r].off = false }}
}

// RelayRestarted is a relay that ends in order, and is started again.
func RelayRestarted(r int, at, d time.Duration) Fault {
	return Fault{"relay restarted", at, d, func(w *World) { w.relayOff(r, 0, 100*time.Millisecond) }, func(w *World) { w.relays[r].off = false }}
}

// Partition is two regions that do not reach each other.
func Partition(a, b int, at, d time.Duration) Fault {
	set := func(cut bool) func(w *World) {
		return func(w *World) {
			w.cut[a][b], w.cut[b][a] = cut, cut
			w.noticeAll()
		}
	}
	return Fault{"partition", at, d, set(true), set(false)}
}

// Outage is a region in which nothing works: nodes are cut off, and its relays are for all others.
func Outage(region int, at, d time.Duration) Fault {
	set := func(dark bool) func(w *World) {
		return func(w *World) {
			w.dark[region] = dark
			w.noticeAll()
		}
	}
	return Fault{"regional outage", at, d, set(true), set(false)}
}

// Plan has a fault happen.
func (w *World) Plan(f Fault) {
	w.at(f.At, func() {
		f.Begin(w)
		w.touch(f.Name)
	})
	w.at(f.At+f.For, func() {
		f.End(w)
		w.touch("end of " + f.Name)
	})
}

func (w *World) relayOff(r int, first, more time.Duration) {
	relay := w.relays[r]
	relay.off, relay.held, relay.free = true, 0, 0
	relay.life++
	for _, n := range w.nodes {
		if n.lines[r].up {
			w.loseIn(n, r, first+w.upTo(more))
		}
	}
}

// noticeAll has dead connections to relays noticed, where they are dead by then.
func (w *World) noticeAll() {
	for _, n := range w.nodes {
		for r := range n.lines {
			if n.lines[r].up && !w.serves(n, r) {
				w.loseIn(n, r, noticeFirst+w.upTo(noticeMore))
			}
		}
	}
}

// Churn restarts so many nodes a minute, and moves as many to another address, until end.
func (w *World) Churn(perMinute int, from, end time.Duration) {
	if perMinute == 0 {
		return
	}
	every := time.Minute / time.Duration(perMinute)
	var next func()
	next = func() {
		w.restart(w.nodes[w.rnd.IntN(len(w.nodes))])
		w.move(w.nodes[w.rnd.IntN(len(w.nodes))])
		if w.now+every < end {
			w.after(every, next)
		}
	}
	w.at(from, next)
}

func (w *World) restart(n *node) {
	if n.off {
		return
	}
	w.stop(n)
	w.touchNode(n, "node restarted")
	w.after(5*time.Second+w.upTo(time.Minute), func() {
		w.start(n)
		w.touchNode(n, "node back")
	})
}

// move gives a node another address: no connection survives, and its agent knows immediately.
func (w *World) move(n *node) {
	if n.off {
		return
	}
	n.conns++
	for r := range n.lines {
		if n.lines[r].up {
			w.loseIn(n, r, 100*time.Millisecond+w.upTo(pingWait))
		}
	}
	w.touchNode(n, "node moved")
	for _, s := range n.sides {
		s.later(100*time.Millisecond, func() { s.netChanged() })
	}
}
