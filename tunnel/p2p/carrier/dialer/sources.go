package dialer

import (
	"context"
	"net/netip"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/base/endpoint"
)

// sourceDelay is what a dial from one own address has before another is tried (RFC 8305, section 5).
const sourceDelay = 250 * time.Millisecond

// sourceKey marks the context of a dial that leaves from an own address.
type sourceKey struct{}

// sourceOf is that address; none: the kernel chooses it.
func sourceOf(ctx context.Context) netip.Addr {
	src, _ := ctx.Value(sourceKey{}).(netip.Addr)
	return src
}

// fromEach dials from the address that the kernel chooses, and from each other own address that could serve after those
// before it have failed or had their time: a prefix that the router has lost stays on the host, and is still preferred. The
// first connection counts.
func (d *Dialer) fromEach(ctx context.Context, a ma.Multiaddr, p peer.ID) (transport.CapableConn, error) {
	var others []netip.Addr
	if e, ok := endpoint.Target(a); ok && d.cfg.Sources != nil {
		others = d.cfg.Sources(p, e.Addr.Addr())
	}
	if len(others) == 0 {
		return d.dial(ctx, a, p)
	}
	type result struct {
		c   transport.CapableConn
		err error
	}
	results := make(chan result)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queue := append([]netip.Addr{{}}, others...)
	next := time.NewTimer(0)
	defer next.Stop()
	var first transport.CapableConn
	var errs []error
	for running := 0; running+len(queue) > 0; {
		due := next.C
		if len(queue) == 0 {
			due = nil
		}
		select {
		case <-due:
			from := ctx
			if src := queue[0]; src.IsValid() {
				from = context.WithValue(ctx, sourceKey{}, src)
			}
			queue = queue[1:]
			running++
			go func() {
				c, err := d.dial(from, a, p)
				results <- result{c, err}
			}()
			next.Reset(sourceDelay)
		case r := <-results:
			running--
			switch {
			case r.err != nil:
				errs = append(errs, r.err)
				next.Reset(0)
			case first != nil:
				_ = r.c.Close()
			default:
				first, queue = r.c, nil
				cancel()
			}
		}
	}
	if first != nil {
		return first, nil
	}
	return nil, wording.Join(errs...)
}
