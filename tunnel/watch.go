package tunnel

import (
	"fmt"

	"edgemesh/internal/watchdog"
)

// Watch shows where the reader of the device and the busy writers of lanes stand. It takes the tunnel's locks: where one of
// them is never given back, it does not return.
//
// A reader that hangs behind the last packet there is keeps nobody waiting; it counts from the next packet on.
func (t *Tunnel) Watch(show func(watchdog.Work)) {
	if t.cfg.Device.Pending() {
		show(watchdog.Work{Name: "TUN reader", Steps: t.reads.Load()})
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, p := range t.peers {
		for _, l := range p.lanes {
			if w, busy := l.watch(); busy {
				w.Name = fmt.Sprintf("writer of the %s lane to %s", [...]string{StreamLane: "stream", DatagramLane: "datagram"}[l.id], id)
				show(w)
			}
		}
	}
}

// watch shows where the writer stands. A carrier that takes nothing is no fault of the writer: the far end may hang. It is
// reset, and only a writer that does not return from that hangs.
func (l *lane) watch() (w watchdog.Work, busy bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	steps := l.steps
	return watchdog.Work{Steps: steps, Free: func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.steps == steps && l.cur != nil {
			l.p.t.log.Warn("a carrier takes no packets: replaced", "peer", l.p.id, "lane", l.id)
			l.cur.c.Reset()
		}
	}}, l.writer == writerBusy
}
