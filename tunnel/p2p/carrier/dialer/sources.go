package dialer

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	ma "github.com/multiformats/go-multiaddr"
	"golang.org/x/sys/unix"

	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/base/endpoint"
)

const (
	// sourceDelay is what a dial from one own address has before another is tried (RFC 8305, section 5), and meteredDelay on a
	// metered uplink, where it is given up first. Once TCP is connected it has moreTime as much: handshakes take more round trips.
	sourceDelay  = 250 * time.Millisecond
	meteredDelay = 1500 * time.Millisecond
	moreTime     = 4
)

// sourceKey is the key of an attempt in the context of its dial.
type sourceKey struct{}

// attempt is a dial from one own address.
type attempt struct {
	src       netip.Addr // invalid: the kernel chooses
	connected func()     // called when TCP is
}

// attemptOf is the attempt that a dial is.
func attemptOf(ctx context.Context) attempt {
	if x, ok := ctx.Value(sourceKey{}).(attempt); ok {
		return x
	}
	return attempt{connected: func() {}}
}

// fromEach dials from the address that the kernel chooses, and from each other own address that could serve after those
// before it have failed or had their time: a prefix that the router has lost stays on the host, and is still preferred.
func (d *Dialer) fromEach(ctx context.Context, a ma.Multiaddr, p peer.ID) (transport.CapableConn, error) {
	var others []netip.Addr
	if e, ok := endpoint.Target(a); ok && d.cfg.Sources != nil {
		others = d.cfg.Sources(p, e.Addr.Addr())
	}
	if len(others) == 0 {
		return d.dial(ctx, a, p)
	}
	return race(ctx, others, d.cfg.Metered != nil && d.cfg.Metered(), func(ctx context.Context) (transport.CapableConn, error) { return d.dial(ctx, a, p) })
}

// race returns the first connection, or the error of the first host that refuses: it would from any address. On a metered uplink
// there is one dial at a time.
func race(ctx context.Context, others []netip.Addr, metered bool, dial func(context.Context) (transport.CapableConn, error)) (transport.CapableConn, error) {
	type result struct {
		c   transport.CapableConn
		err error
	}
	results, connected := make(chan result), make(chan struct{}, 1+len(others))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	delay := sourceDelay
	if metered {
		delay = meteredDelay
	}
	queue := append([]netip.Addr{{}}, others...)
	next := time.NewTimer(0)
	defer next.Stop()
	var first transport.CapableConn
	var refused error
	var errs []error
	stop := func() {}
	defer func() { stop() }()
	for running := 0; running+len(queue) > 0; {
		due := next.C
		if len(queue) == 0 {
			due = nil
		}
		select {
		case <-due:
			if stop(); metered && running > 0 {
				continue // its end starts the next one
			}
			from, end := context.WithCancel(context.WithValue(ctx, sourceKey{}, attempt{queue[0], func() { connected <- struct{}{} }}))
			if queue = queue[1:]; metered && len(queue) > 0 {
				stop = end
			}
			running++
			go func() {
				defer end()
				c, err := dial(from)
				results <- result{c, err}
			}()
			next.Reset(delay)
		case <-connected:
			next.Reset(moreTime * delay)
		case r := <-results:
			running--
			_, stranger := Answered(r.err)
			switch {
			case r.err != nil:
				errs = append(errs, r.err)
				next.Reset(0)
				if refused == nil && (stranger || errors.Is(r.err, unix.ECONNREFUSED)) {
					refused, queue = r.err, nil
					cancel()
				}
			case first != nil:
				_ = r.c.Close()
			default:
				first, queue = r.c, nil
				cancel()
			}
		}
	}
	switch {
	case first != nil:
		return first, nil
	case refused != nil:
		return nil, refused
	}
	return nil, wording.Join(errs...)
}
