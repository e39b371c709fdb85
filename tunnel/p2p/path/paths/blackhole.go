package paths

import (
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"golang.org/x/sys/unix"

	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/carrier/dialer"
)

// A TCP connection that is up when a link on its path begins to drop large packets repeats
// the same segment forever, while everything small arrives. For a moment loss looks the
// same; what distinguishes them is what became of the segments behind the repeated one,
// which selective acknowledgements say, and what the peer's other paths find. With an MTU that
// falls to 1280, a transfer continues after 1.4 to 2.8 s; by liveness alone it was 6.0 s
// (docs/measurements/failover.md).
const (
	// holeHeard is how long ago the peer's data may have come, at most: its probes are
	// due twice a second. Silence is something else.
	holeHeard = 700 * time.Millisecond
	// Where small segments arrived, few, and large ones did not, it is a black hole
	// after holeRepeats repeats, the first 0.2 s after the loss, the next ones after twice the
	// time of the one before; and not before holeLost large ones are lost, all in all. Small
	// are probes and acknowledgements of flows inside, of holeTiny bytes.
	holeRepeats = 2
	holeLost    = 4
	holeFew     = 3
	holeTiny    = 128
	// If nothing is known to have arrived, the path may have been cut for a second. It was not
	// if the peer is heard after the third repeat, which leaves 1.4 s after the loss: a path
	// that is cut for so long is given up for its silence first.
	blindRepeats = 3
	// repeatAnswer is how long after a repeat its acknowledgement is awaited, at least.
	repeatAnswer = 50 * time.Millisecond
	// BlackHoleFresh is how long a black hole found on another path counts, and SuspectAgain
	// when a suspect is looked at again.
	BlackHoleFresh = 2 * time.Second
	SuspectAgain   = 100 * time.Millisecond
)

// Verdict is what a TCP connection's repeats mean.
type Verdict int

const (
	// Innocent: nothing is repeated, or large segments arrive.
	Innocent Verdict = iota
	// Suspect: no large segment arrives at the moment.
	Suspect
	// BlackHole: none will.
	BlackHole
)

// judge says what the kernel's figures of a connection mean; unacked is how many bytes are
// sent and not acknowledged, proven that large packets are known to vanish on this way.
func judge(i *unix.TCPInfo, unacked int, proven bool) Verdict {
	ms := func(n uint32) time.Duration { return time.Duration(n) * time.Millisecond }
	heard, repeated := ms(i.Last_data_recv), ms(i.Last_data_sent)
	if i.Retransmits == 0 || i.Snd_mss <= dialer.MinMSS || heard > holeHeard {
		return Innocent
	}
	if unacked <= dialer.MinMSS+(int(i.Unacked)-1)*holeTiny { // perhaps all are small
		return Innocent
	}
	// Those under way have so many bytes that at least so many are large; if more have
	// arrived than are small at most, a large one has.
	mss, small := int(i.Snd_mss), dialer.SmallerMSS(int(i.Snd_mss))
	large := max(0, (unacked-int(i.Unacked)*small+mss-small-1)/(mss-small))
	if int(i.Sacked) > int(i.Unacked)-large {
		return Innocent
	}
	rtt := time.Duration(i.Rtt) * time.Microsecond
	lost := int(i.Retransmits)
	if repeated < max(2*rtt, repeatAnswer) {
		lost-- // the last one may be on its way
	}
	few := i.Sacked <= max(holeFew, i.Unacked/2)
	switch {
	case proven && few:
		return BlackHole
	case i.Sacked > 0 && few && lost >= holeRepeats && max(large, 1)+lost >= holeLost:
		return BlackHole
	case lost >= blindRepeats && heard+rtt <= repeated:
		return BlackHole
	}
	return Suspect
}

// MTU judges the TCP connections that carry c; proven says that an MTU black hole was found
// on another path to the peer a moment ago. The caller gives up a direct path in one; a
// connection to a relay is closed here, and dialed again. found: a black hole was found, on
// either.
func (c *Conn) MTU(proven bool) (v Verdict, found bool) {
	if !c.Relayed() {
		v = c.cfg.mtu(c.Conn, proven)
		return v, v == BlackHole
	}
	for _, x := range c.cfg.Conns(c.Relay) {
		if endpoint.IsCircuit(x.RemoteMultiaddr()) || x.IsClosed() {
			continue
		}
		one := c.cfg.mtu(x, proven || found)
		if one == BlackHole {
			c.cfg.Log.Info("MTU of the connection to the relay decreased; reconnecting with smaller segments", "relay", c.Relay)
			c.cfg.Spawn(func() { _ = x.Close() })
			c.cfg.SuspectRelay(c.Relay)
			one, found = Innocent, true
		}
		v = max(v, one)
	}
	return v, found
}

// mtu judges a connection, if it is one over TCP. The address of one in a black hole is
// dialed with smaller segments from now on, where there are any.
func (cfg *Config) mtu(c network.Conn, proven bool) Verdict {
	info, unacked := cfg.TCP.Info(c)
	if info == nil {
		return Innocent
	}
	v := judge(info, unacked, proven)
	if ip, ok := endpoint.IP(c.RemoteMultiaddr()); ok && v == BlackHole {
		cfg.TCP.Shrink(ip, int(info.Snd_mss))
	}
	return v
}
