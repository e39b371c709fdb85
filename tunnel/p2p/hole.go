package p2p

import (
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"golang.org/x/sys/unix"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/dialer"
	"edgemesh/tunnel/p2p/endpoint"
)

// A TCP connection that is up when a link on its way begins to swallow large packets
// repeats the same segment for ever, while everything small arrives. Loss looks alike for
// a moment; what tells them apart is what became of the segments behind the one that is
// repeated, which selective acknowledgements say, and what the peer's other paths find.
const (
	// holeHeard is how long ago the peer's data may have come, at most: its probes are
	// due twice a second. Silence is something else.
	holeHeard = 700 * time.Millisecond
	// Where small segments arrived, few, and large ones did not, it is a hole after
	// holeRepeats repeats, the first 0.2 s after the loss, the next ones after twice the
	// time of the one before; and not before holeLost large ones are lost, all in all. Small
	// are probes and acknowledgements of flows inside, of holeTiny bytes.
	holeRepeats = 2
	holeLost    = 4
	holeFew     = 3
	holeTiny    = 128
	// Where nothing is known to have arrived, the way may have been cut for a second. It was not,
	// when the peer is heard after a repeat that is lost, too: the third, which leaves 1.4 s after
	// the loss; a way that is cut for so long is given up for its silence before.
	blindRepeats = 3
	// repeatAnswer is how long after a repeat its acknowledgement is awaited, at least.
	repeatAnswer = 50 * time.Millisecond
	// holeFresh is how long a hole found by another path counts, and holeLook when a suspect
	// is looked at again.
	holeFresh = 2 * time.Second
	holeLook  = 100 * time.Millisecond
)

// verdict is what a TCP connection's repeats mean.
type verdict int

const (
	// innocent: nothing is repeated, or large segments arrive.
	innocent verdict = iota
	// suspect: no large segment arrives at the moment.
	suspect
	// holed: none will.
	holed
)

// judge says what the kernel's figures of a connection mean; unacked is how many bytes are
// sent and not acknowledged, proven that large packets are known to vanish on this way.
func judge(i *unix.TCPInfo, unacked int, proven bool) verdict {
	ms := func(n uint32) time.Duration { return time.Duration(n) * time.Millisecond }
	heard, repeated := ms(i.Last_data_recv), ms(i.Last_data_sent)
	if i.Retransmits == 0 || i.Snd_mss <= dialer.MinMSS || heard > holeHeard {
		return innocent
	}
	if unacked <= dialer.MinMSS+(int(i.Unacked)-1)*holeTiny { // perhaps all are small
		return innocent
	}
	// Those under way have so many bytes that at least so many are large; if more have
	// arrived than are small at most, a large one has.
	mss, small := int(i.Snd_mss), dialer.SmallerMSS(int(i.Snd_mss))
	large := max(0, (unacked-int(i.Unacked)*small+mss-small-1)/(mss-small))
	if int(i.Sacked) > int(i.Unacked)-large {
		return innocent
	}
	rtt := time.Duration(i.Rtt) * time.Microsecond
	lost := int(i.Retransmits)
	if repeated < max(2*rtt, repeatAnswer) {
		lost-- // the last one may be on its way
	}
	few := i.Sacked <= max(holeFew, i.Unacked/2)
	switch {
	case proven && few:
		return holed
	case i.Sacked > 0 && few && lost >= holeRepeats && max(large, 1)+lost >= holeLost:
		return holed
	case lost >= blindRepeats && heard+rtt <= repeated:
		return holed
	}
	return suspect
}

// verdict judges the TCP connections that carry a path. A direct path that is holed is for
// the caller to give up, a connection to a relay is closed here: it is dialed again. The caller
// holds r.set.mu.
func (p *path) verdict() verdict {
	if !p.relayed() {
		return p.r.judge(p.conn)
	}
	worst := innocent
	for _, c := range p.n.sw.ConnsToPeer(p.relay) {
		if endpoint.IsCircuit(c.RemoteMultiaddr()) || c.IsClosed() {
			continue
		}
		v := p.r.judge(c)
		if v == holed {
			p.n.log.Info("connection to the relay takes smaller packets than before", "relay", p.relay)
			p.n.goClose(c)
			p.n.relays.Suspect(p.relay)
			v = innocent
		}
		worst = max(worst, v)
	}
	return worst
}

// judge judges a connection, if it is one over TCP. The way of one that is holed is dialed
// with smaller segments from now on, where there are any. The caller holds set.mu.
func (r *remote) judge(c network.Conn) verdict {
	info, unacked := r.set.n.dialer.Sockets().Info(c)
	if info == nil {
		return innocent
	}
	v := judge(info, unacked, time.Since(r.holed) < holeFresh)
	if ip, ok := endpoint.IP(c.RemoteMultiaddr()); ok && v == holed {
		r.holed = time.Now()
		r.set.n.dialer.Sockets().Shrink(ip, int(info.Snd_mss))
	}
	return v
}

// confirmSiblings has the sizes of the other paths confirmed: what has made one smaller has
// often made them all. The caller holds r.set.mu.
func (p *path) confirmSiblings() {
	for _, other := range p.r.paths {
		if other != p {
			other.datagrams.Confirm()
		}
	}
}

// lookAgain has the machine look at the paths again in a moment. The caller holds set.mu.
func (r *remote) lookAgain() {
	if r.looking {
		return
	}
	n := r.set.n
	r.looking = n.spawn(func() {
		wake.Sleep(n.ctx, holeLook)
		r.set.mu.Lock()
		r.looking = false
		r.set.mu.Unlock()
		r.stir()
	})
}
