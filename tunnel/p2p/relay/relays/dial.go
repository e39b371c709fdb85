package relays

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	madns "github.com/multiformats/go-multiaddr-dns"
	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/internal/proxy"
	"edgemesh/internal/resolve"
	"edgemesh/internal/wake"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/endpoint"
)

// tcpChance is how long a relay reached by QUIC waits for TCP to follow.
const tcpChance = 300 * time.Millisecond

// headStart is what the direct ways have before the proxy is asked (RFC 8305 section 5: 250 ms between attempts).
const headStart = 250 * time.Millisecond

// dialFunc dials an address of a relay, from the listening ports or from others.
type dialFunc = func(ctx context.Context, a ma.Multiaddr, relay peer.ID) error

// round is one round of dials to a relay.
type round struct {
	c       *client
	dials   sync.WaitGroup
	dial    dialFunc
	turns   bool          // members are many: the first handshake may have to wait for its turn
	alone   bool          // QUIC only where TCP does not get through
	worked  bool          // TCP has got through before
	results chan dialed   // closed when all dials have ended
	over    chan struct{} // closed when nobody reads results any longer
	dialed  sync.Map      // addresses in this round
	errs    []error
}

// dialed is the outcome of one dial.
type dialed struct {
	to  ma.Multiaddr // nil: there was nothing to dial
	err error
}

// connect dials every transport that has no connection yet, all addresses at the same time, and the proxy, if there is one
// and nothing else is connected. It returns as soon as TCP is there, or QUIC and TCP had tcpChance; the other dials continue.
func (c *client) connect() error {
	conns := c.conns()
	away := detached(c.Dialer, conns)
	turn := away && c.ports.due(time.Now()) // of the listening ports, beside the others
	have, proxied := there{}, false
	for _, conn := range conns {
		switch {
		case c.Dialer.Proxied(conn):
			proxied = true // the direct way to the relay is still missing
		case !turn:
			have.add(conn)
		}
	}
	wait := headStart
	switch {
	case have != there{} || proxied || turn:
		wait = never
	case c.proxied:
		wait = 0
	}
	dial := c.Dialer.Dial
	if away && !turn || len(conns) == 0 && c.ports.others() {
		dial = c.Dialer.DialElsewhere
	}
	c.ports.heard = false
	err := dialRound(c, &have, wait, dial)
	if len(conns) == 0 {
		c.lead.ended(slices.ContainsFunc(c.conns(), func(conn network.Conn) bool { return !overUDP(conn) && !c.Dialer.Proxied(conn) }))
	}
	switch now := c.conns(); {
	case slices.ContainsFunc(now, func(conn network.Conn) bool { return listening(c.Dialer, conn) }):
		c.ports = ports{}
	case turn:
		c.ports.stuck = time.Now()
	case c.ports.heard:
		c.ports.misses = 0
	case len(now) == 0 && !errors.Is(err, errLost): // then nothing was waited for
		c.ports.misses++
	}
	return err
}

// begin connects for a session or a survey: once more where the connections that were there have ended meanwhile, as those
// of an earlier one do. That says nothing about the relay.
func (c *client) begin() error {
	c.told.Store(nil)
	err := c.connect()
	if errors.Is(err, errLost) || err == nil && len(c.conns()) == 0 {
		err = c.connect()
	}
	return err
}

// errLost: the last connection to a relay has ended.
var errLost = errors.New("connection lost")

// never in place of a wait: the proxy is not asked.
const never = time.Duration(-1)

// there is what is connected: TCP, and QUIC by IP version, since punching needs the relay to see the UDP socket over each.
type there struct {
	tcp  bool
	quic resolve.Families
}

func (t *there) add(conn network.Conn) {
	if !overUDP(conn) {
		t.tcp = true
		return
	}
	t.quic |= familyOf(endpoint.Real(conn.RemoteMultiaddr()))
}

// lacks are the IP versions over which a is to be dialed.
func (t there) lacks(a ma.Multiaddr) resolve.Families {
	switch {
	case isQUIC(a):
		return familyOf(a) &^ t.quic
	case t.tcp:
		return 0
	}
	return familyOf(a)
}

// familyOf are the IP versions that an address may be of.
func familyOf(a ma.Multiaddr) resolve.Families {
	switch a[0].Code() {
	case ma.P_IP4, ma.P_DNS4:
		return resolve.V4
	case ma.P_IP6, ma.P_DNS6:
		return resolve.V6
	}
	return resolve.Both
}

// dialRound dials directly, with dial, what is not in have, unless it is nil, and the proxy after wait.
func dialRound(c *client, have *there, wait time.Duration, dial dialFunc) error {
	connected := len(c.conns()) > 0
	ctx, cancel := context.WithCancel(c.ctx)
	r := &round{c: c, dial: dial, results: make(chan dialed), over: make(chan struct{}), turns: !connected && c.tcpFirst(),
		worked: c.lead.works}
	r.alone = r.turns && !c.lead.both()
	defer close(r.over)
	if have != nil {
		r.run(func() { r.direct(ctx, *have) })
	}
	if wait != never {
		r.run(func() { r.through(ctx, wait) })
	}
	if !c.Spawn(func() { r.dials.Wait(); cancel(); close(r.results) }) {
		cancel()
		return c.ctx.Err()
	}
	return r.first(connected)
}

// run runs f, which dials, beside the others.
func (r *round) run(f func()) {
	r.dials.Add(1)
	if !r.c.Spawn(func() { defer r.dials.Done(); f() }) {
		r.dials.Done()
	}
}

func (r *round) result(to ma.Multiaddr, err error) {
	select {
	case r.results <- dialed{to, err}:
	case <-r.over:
	}
}

// direct dials the addresses of what is not there yet, those of names, and of /dnsaddr, as they become known.
func (r *round) direct(ctx context.Context, have there) {
	var now []ma.Multiaddr
	for _, a := range r.c.info.Addrs {
		if isDNSAddr(a) {
			r.run(func() { r.all(ctx, r.behind(ctx, a), have) })
			continue
		}
		now = append(now, a)
	}
	r.all(ctx, now, have)
}

func (r *round) all(ctx context.Context, addrs []ma.Multiaddr, have there) {
	addrs = slices.DeleteFunc(addrs, func(a ma.Multiaddr) bool { return have.lacks(a) == 0 })
	var first *tcpFirst
	if tcp := len(addrs) - count(addrs, isQUIC); r.alone && tcp > 0 {
		first = newTCPFirst(r.worked, tcp)
	}
	for _, a := range addrs {
		r.run(func() {
			if first != nil && isQUIC(a) && !first.wait(ctx) {
				return
			}
			err := r.host(ctx, a, have.lacks(a), first)
			if first != nil && !isQUIC(a) {
				first.ended(err)
			}
		})
	}
}

// behind are the addresses that /dnsaddr stands for, one level of it.
func (r *round) behind(ctx context.Context, a ma.Multiaddr) []ma.Multiaddr {
	txt, err := madns.NewResolver(madns.WithDefaultResolver(r.c.Names))
	var of []ma.Multiaddr
	if err == nil {
		of, err = txt.Resolve(ctx, a)
	}
	if err != nil {
		r.result(nil, fmt.Errorf("resolve %s: %w", a, err))
	}
	return slices.DeleteFunc(of, isDNSAddr)
}

func isDNSAddr(a ma.Multiaddr) bool { return a[0].Code() == ma.P_DNSADDR }

// host dials a listed address: where that is a name's, all that the name stands for in these IP versions. The error is that of the
// last one.
func (r *round) host(ctx context.Context, a ma.Multiaddr, families resolve.Families, first *tcpFirst) error {
	if code := a[0].Code(); code != ma.P_DNS && code != ma.P_DNS4 && code != ma.P_DNS6 {
		return r.once(ctx, a, first)
	}
	names, name := r.c.Names, a[0].Value()
	_, rest := ma.SplitFirst(r.c.Dialer.Named(ctx, a))
	worked := errors.New("no usable address")
	var mu sync.Mutex // of worked
	err := names.Each(ctx, name, families, func(ctx context.Context, ip netip.Addr) error {
		at, err := manet.FromIP(ip.AsSlice())
		if err == nil {
			err = r.once(ctx, at.Encapsulate(rest), first)
		}
		if err == nil {
			names.Worked(name, ip)
		}
		mu.Lock()
		defer mu.Unlock()
		if worked != nil {
			worked = err
		}
		return err
	})
	if err != nil {
		r.result(nil, fmt.Errorf("resolve %s: %w", a, err))
	}
	return worked
}

// errNotDialed: the address is none for relays, is being dialed, or is no longer needed.
var errNotDialed = errors.New("not dialed")

// once dials an address, unless this round has, or has what it would give.
func (r *round) once(ctx context.Context, a ma.Multiaddr, first *tcpFirst) error {
	if !r.c.Members.View().Outside(a) {
		return errNotDialed
	}
	select {
	case <-r.over:
		if r.check(isQUIC(a)) == nil {
			return errNotDialed
		}
	default:
	}
	if _, twice := r.dialed.LoadOrStore(string(a.Bytes()), nil); twice {
		return errNotDialed
	}
	err := r.at(ctx, a, first)
	r.result(a, err)
	return err
}

func count[T any](list []T, is func(T) bool) (n int) {
	for _, x := range list {
		if is(x) {
			n++
		}
	}
	return n
}

// through dials through the proxy, if there is one for the relay's addresses: those that operators have listed, by the
// names they have there.
func (r *round) through(ctx context.Context, wait time.Duration) {
	c := r.c
	ctx, cancel := context.WithTimeout(ctx, DialTimeout)
	context.AfterFunc(ctx, cancel) // the dials below last longer than this function
	if !c.Members.View().IsOperators(c.info.ID) {
		return
	}
	for _, a := range c.info.Addrs {
		u, err := c.Dialer.Proxy(a)
		if err != nil {
			r.result(nil, err)
		}
		if u != nil {
			r.run(func() {
				if wake.Sleep(ctx, wait) && (wait == 0 || len(c.conns()) == 0) {
					r.result(a, r.insist(ctx, u, a))
				}
			})
		}
	}
}

// insist dials through the proxy, and again after what may be over soon: what else is dialed beside it may take seconds to
// fail. The error is that of the last dial that ended by itself.
func (r *round) insist(ctx context.Context, u *url.URL, a ma.Multiaddr) error {
	c := r.c
	var last error
	for {
		err := c.Dialer.DialThrough(ctx, u, c.Dialer.Named(ctx, a), c.info.ID)
		if err != nil && last != nil && ctx.Err() != nil {
			return last
		}
		pause, ok := passing(err)
		if ok {
			last = err
			c.outcome.early(fmt.Errorf("connect: %s: %w", short(a), err))
		}
		if !ok || !wake.Sleep(ctx, pause) {
			return err
		}
	}
}

// passing says when to ask the proxy again; ok is false where its answer will hardly be another one soon. It may be
// restarting; or the relay may, which it tells us by its answer, or by ending what it had begun.
func passing(err error) (pause time.Duration, ok bool) {
	var e *proxy.Error
	if !errors.As(err, &e) {
		return 0, false
	}
	switch e.Cause { //nolint:exhaustive // the others stay
	case proxy.Unreachable:
		return headStart, true
	case proxy.Failed, proxy.Cut:
		return 4 * headStart, true
	}
	return 0, false
}

// first waits for the first useful result. connected: there was a connection before; once that has ended nothing beside
// it is waited for.
func (r *round) first(connected bool) error {
	var enough <-chan time.Time // runs once QUIC is there
	tried := false
	for {
		changed := r.c.changed.Next()
		if connected && len(r.c.conns()) == 0 {
			return errLost
		}
		select {
		case <-changed:
		case d, more := <-r.results:
			tried = tried || d.to != nil
			switch {
			case !more && enough != nil:
				return r.check(true)
			case !more && connected && !tried:
				return nil
			case !more:
				return r.err()
			case d.err != nil:
				r.failed(d)
			case !isQUIC(d.to):
				return r.check(false)
			case enough == nil:
				enough = time.After(tcpChance)
			}
		case <-enough:
			return r.check(true)
		case <-r.c.ctx.Done():
			return r.c.ctx.Err()
		}
	}
}

// at dials the relay at one of its addresses. first may be nil.
func (r *round) at(ctx context.Context, a ma.Multiaddr, first *tcpFirst) error {
	c, limit := r.c, DialTimeout
	if e, ok := endpoint.Parse(a); ok && !e.UDP && r.turns {
		accepted := func() {}
		if first != nil {
			accepted = first.accept
		}
		ctx, limit = conns.WithTurn(ctx, accepted), turnTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if e, ok := endpoint.Target(a); ok && !c.Members.View().IsOperators(c.info.ID) {
		most, err := c.Targets.Spend(c.info.ID, e)
		if err != nil {
			return err
		}
		if most > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, most)
			defer cancel()
		}
	}
	return r.dial(ctx, a, c.info.ID)
}

func (r *round) failed(d dialed) {
	if d.to == nil {
		r.errs = append(r.errs, d.err)
		return
	}
	why, through := refused(d.err), (*proxy.Error)(nil)
	if _, ok := endpoint.Parse(d.to); ok && !errors.Is(why, conns.ErrRefused) && !errors.As(why, &through) {
		why = conns.Plain(why)
	}
	r.errs = append(r.errs, fmt.Errorf("%s: %w", short(d.to), why))
	r.c.ports.heard = r.c.ports.heard || !unanswered(isQUIC(d.to), d.err)
	if r.c.ctx.Err() == nil {
		r.c.outcome.early(r.err())
	}
}

func (r *round) err() error {
	if len(r.errs) == 0 {
		return errors.New("no usable address")
	}
	return fmt.Errorf("connect: %w", wording.Join(r.errs...))
}

// check returns an error if the connection that was dialed has ended already.
func (r *round) check(udp bool) error {
	if slices.ContainsFunc(r.c.conns(), func(conn network.Conn) bool { return overUDP(conn) == udp }) {
		return nil
	}
	return fmt.Errorf("connect: %w", refused(conns.ErrRefused))
}

// refused adds to an error what an operator may have to do about it.
func refused(err error) error {
	if errors.Is(err, conns.ErrRefused) {
		return fmt.Errorf("%w: does the relay's membership list this node?", err)
	}
	return err
}

// short is a as people write endpoints, where it is one.
func short(a ma.Multiaddr) string {
	if e, ok := endpoint.Parse(a); ok {
		return e.String()
	}
	return a.String()
}
