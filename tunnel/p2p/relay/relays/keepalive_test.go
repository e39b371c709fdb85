package relays

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/relay/relays/choice"
	"edgemesh/tunnel/p2p/who/members"
)

// router is one that forgets connections after some silence, with relays behind it, as keepAlives sees them. The kernel's part is
// played: a probe after the silence that was set, and the end of what is not answered.
type router struct {
	t       *testing.T
	now     time.Duration
	forgets time.Duration
	resets  bool
	lies    bool // it has become another one
	conns   map[peer.ID]*keptConn
	keep    *keepAlives
	ended   int
	away    time.Duration // for how long no relay has reached the node
	longest time.Duration // that
}

type keptConn struct {
	network.Conn
	remote       peer.ID
	heard, probe time.Duration
	silent       time.Duration // when it ended
	over         bool
}

func (c *keptConn) IsClosed() bool                { return c.over }
func (c *keptConn) RemotePeer() peer.ID           { return c.remote }
func (c *keptConn) RemoteMultiaddr() ma.Multiaddr { return ma.StringCast("/ip4/192.0.2.1/tcp/9") }

type routed struct {
	*oneConn
	r *router
}

func (h routed) Network() network.Network { return routedNetwork{r: h.r} }

type routedNetwork struct {
	network.Network
	r *router
}

func (n routedNetwork) ConnsToPeer(p peer.ID) []network.Conn { return []network.Conn{n.r.conns[p]} }

var start = time.Unix(1e9, 0)

func newRouter(t *testing.T, relays int, forgets time.Duration, resets bool) *router {
	r := &router{t: t, forgets: forgets, resets: resets, conns: map[peer.ID]*keptConn{}}
	s := New(Config{Self: "self", Members: members.NewGater(members.NewView("self", members.Membership{}), members.Rules{}),
		Heard: func(c network.ConnMultiaddrs) time.Time { return start.Add(c.(*keptConn).heard) },
		KeepAlive: func(c network.ConnMultiaddrs, d time.Duration) func() time.Duration {
			k := c.(*keptConn)
			k.probe = d
			return func() time.Duration { return k.silent }
		}})
	s.ctx, s.host = t.Context(), routed{r: r}
	for range relays {
		id := newID(t)
		c := newClient(&s.common, peer.AddrInfo{ID: id})
		c.demand.setReservation(true)
		s.clients = append(s.clients, c)
		r.conns[id] = &keptConn{remote: id}
	}
	r.keep = &s.keep
	r.keep.Now, r.keep.Spawn = func() time.Duration { return r.now }, func(f func()) bool { f(); return true }
	return r
}

// run lets time pass.
func (r *router) run(d time.Duration) {
	for end := r.now + d; r.now < end; r.now += time.Second {
		dead := 0
		for id, c := range r.conns {
			silence := r.now - c.heard
			if silence >= r.forgets {
				dead++
			}
			switch {
			case c.probe == 0 || silence < c.probe:
			case silence < r.forgets:
				c.heard = r.now
			case r.resets || silence > c.probe+9*time.Second:
				r.ended++
				r.again(id, silence)
			}
		}
		if r.away += time.Second; dead < len(r.conns) {
			r.away = 0
		}
		if r.longest = max(r.longest, r.away); dead > 1 && !r.lies {
			r.t.Errorf("after %v no relay can reach this node", r.now)
		}
		if r.now%keepLook == 0 {
			r.keep.look(start.Add(r.now), r.now)
		}
	}
}

// again has a connection end that has been silent for some time, and come back.
func (r *router) again(id peer.ID, silent time.Duration) {
	r.conns[id].over, r.conns[id].silent = true, silent
	r.conns[id] = &keptConn{remote: id, heard: r.now}
}

// Silences grow until they just hold, and one relay is always there.
func TestKeepAliveLearns(t *testing.T) {
	for _, resets := range []bool{false, true} {
		for _, c := range []struct{ forgets, least, most time.Duration }{
			{time.Hour, MostSilence, MostSilence}, {2 * time.Minute, MostSilence, MostSilence}, {100 * time.Second, 60 * time.Second, 75 * time.Second},
		} {
			r := newRouter(t, 2, c.forgets, resets)
			r.run(time.Hour)
			before := r.ended
			if got := r.keep.safe(r.now); got < c.least || got > c.most {
				t.Errorf("NAT of %v, resets %v: %v after an hour", c.forgets, resets, got)
			}
			if r.run(12 * time.Hour); r.ended != before || before > 1 {
				t.Errorf("NAT of %v, resets %v: %d connections lost in the first hour, %d later", c.forgets, resets, before, r.ended-before)
			}
		}
	}
}

// A NAT that forgets earlier from some time on is followed, also below the first silence, and forgiven after a day.
func TestKeepAliveShrinks(t *testing.T) {
	r := newRouter(t, 2, time.Hour, false)
	r.run(time.Hour)
	r.forgets, r.lies = 50*time.Second, true
	r.run(10 * time.Minute)
	before := r.ended
	if got := r.keep.safe(r.now); got >= r.forgets || got < keepLeast {
		t.Errorf("%v behind a NAT that forgets after %v", got, r.forgets)
	}
	if r.run(6 * time.Hour); r.ended != before {
		t.Errorf("%d connections lost after that", r.ended-before)
	}
	r.forgets = time.Hour
	if r.run(keepAgain + time.Hour); r.keep.safe(r.now) != MostSilence {
		t.Errorf("%v a day later", r.keep.safe(r.now))
	}
}

// Behind a NAT that kept connections when that was tried, and forgets them at night, the node is reached again within one keep-alive
// interval each time, and each loss shortens the interval, until it holds.
func TestKeepAliveLies(t *testing.T) {
	for _, resets := range []bool{false, true} {
		for _, forgets := range []time.Duration{30 * time.Second, 50 * time.Second, 90 * time.Second, 108 * time.Second} {
			r := newRouter(t, 2, time.Hour, resets)
			r.run(time.Hour)
			if got := r.keep.safe(r.now); got != MostSilence {
				t.Fatalf("%v by day", got)
			}
			r.forgets, r.lies = forgets, true
			if r.run(6 * time.Hour); r.longest > MostSilence {
				t.Errorf("NAT of %v, resets %v: not reached for %v", forgets, resets, r.longest)
			}
			if got := r.keep.safe(r.now); got >= forgets || r.ended > 2*4 {
				t.Errorf("NAT of %v, resets %v: %v after %d lost connections", forgets, resets, got, r.ended)
			}
			t.Logf("NAT of %v, resets %v: not reached for at most %v, %d connections lost", forgets, resets, r.longest, r.ended)
		}
	}
}

// All connections are probed at the same time but one, on which longer silences are tried, and which is never the home's.
func TestKeepAliveTogether(t *testing.T) {
	r := newRouter(t, 3, time.Hour, false)
	for i, id := range slices.Collect(func(yield func(peer.ID) bool) {
		for id := range r.conns {
			if !yield(id) {
				return
			}
		}
	}) {
		r.conns[id].heard = -time.Duration(i) * 17 * time.Second
	}
	var ids []peer.ID
	for _, c := range r.keep.clients() {
		ids = append(ids, c.info.ID)
	}
	r.run(30 * time.Second)
	if home := r.conns[choice.Homes("self", ids)[0]]; home.probe > keepFirst {
		t.Errorf("%v are tried at the home", home.probe)
	}
	r.run(time.Hour)
	var at []time.Duration
	for _, c := range r.conns {
		at = append(at, c.heard)
	}
	if d := slices.Max(at) - slices.Min(at); d > 3*time.Second {
		t.Errorf("probes are up to %v apart", d)
	}
	if one := newRouter(t, 1, time.Hour, false); one.keep.spare(nil) != nil {
		t.Error("the only relay is for trying")
	}
}

// No connection is silent for longer than was learned, however far its probes are from those of others, and once nothing is left to
// try on the spare one.
func TestKeepAliveNeverLonger(t *testing.T) {
	for apart := range MostSilence / time.Second {
		r := newRouter(t, 2, 2*time.Minute, false)
		r.keep.held = MostSilence
		for id, c := range r.conns {
			if id != choice.Homes("self", []peer.ID{r.keep.clients()[0].info.ID, r.keep.clients()[1].info.ID})[0] {
				c.heard = -apart * time.Second
			}
		}
		if r.run(30 * time.Minute); r.ended > 0 {
			t.Fatalf("probes %v apart: %d connections lost", apart*time.Second, r.ended)
		}
	}
}

// What ends for another reason teaches nothing: a relay that restarts closes its connections, which is heard, at any moment.
func TestKeepAliveRestart(t *testing.T) {
	r := newRouter(t, 2, time.Hour, false)
	for i := range 60 {
		r.run(60*time.Second + time.Duration(i)*time.Second)
		for id := range r.conns {
			r.again(id, 0)
		}
	}
	if got := r.keep.failed; got != 0 {
		t.Errorf("%v are taken for too long", got)
	}
}

// A connection whose end is the site's move teaches nothing of the new router, in whatever order things are noticed.
func TestKeepAliveMove(t *testing.T) {
	r := newRouter(t, 2, time.Hour, false)
	r.run(time.Hour)
	for id, c := range r.conns { // the second one notices later
		r.again(id, c.probe+9*time.Second)
		r.keep.enter("192.0.2.7", true, start)
		r.run(45 * time.Second)
	}
	if got := r.keep.failed; got != 0 {
		t.Errorf("%v are taken for too long", got)
	}
	r.run(time.Hour)
	if got := r.keep.safe(r.now); got != MostSilence {
		t.Errorf("%v at the new place", got)
	}
	r.run(time.Second)
	r.forgets, r.lies = 50*time.Second, true
	r.run(time.Hour)
	if got := r.keep.safe(r.now); got >= r.forgets {
		t.Errorf("%v behind a new router that forgets after %v", got, r.forgets)
	}
}

// A NAT that keeps connections by day and forgets them at night costs one night in two, in four, in eight.
func TestKeepAliveNights(t *testing.T) {
	r := newRouter(t, 2, time.Hour, false)
	r.lies = true
	lost := 0
	for range 32 {
		before := r.ended
		r.forgets = time.Hour
		r.run(18 * time.Hour)
		if r.ended != before {
			t.Errorf("lost by day, at %v", r.now)
		}
		r.forgets = 50 * time.Second
		if r.run(6 * time.Hour); r.ended != before {
			lost++
		}
	}
	if lost < 1 || lost > 7 {
		t.Errorf("connections were lost in %d of 32 nights", lost)
	}
}

// What a place has taught is in force again after a restart and after a visit elsewhere, however the date has jumped meanwhile, and
// not at another place: the uplink that a site changes to has a NAT of its own.
func TestKeepAliveRemembers(t *testing.T) {
	const home, lte = "192.0.2.7", "203.0.113.9"
	file := filepath.Join(t.TempDir(), "routers.json")
	world := func() *router {
		r := newRouter(t, 2, 50*time.Second, false)
		r.keep.remembered.path = file
		r.lies = true // both relays are lost once, as long as nothing is known
		if err := r.keep.remembered.open(); err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := world()
	r.keep.enter(home, false, start.Add(r.now))
	r.run(time.Hour)
	if r.ended == 0 || r.keep.safe(r.now) >= 50*time.Second {
		t.Fatalf("%d connections lost, %v afterwards", r.ended, r.keep.safe(r.now))
	}
	r = world()
	r.keep.enter(home, false, start.Add(r.now))
	if r.run(5 * time.Hour); r.ended != 0 {
		t.Errorf("%d connections lost after a restart", r.ended)
	}
	r.keep.enter(lte, true, start.Add(r.now))
	if got := r.keep.safe(r.now); got != keepFirst {
		t.Errorf("%v elsewhere", got)
	}
	r.forgets = time.Hour
	if r.run(time.Hour); r.keep.safe(r.now) != MostSilence {
		t.Errorf("%v elsewhere, after an hour", r.keep.safe(r.now))
	}
	r.keep.enter(home, true, start.Add(r.now))
	if got := r.keep.safe(r.now); got >= 50*time.Second {
		t.Errorf("%v back at home", got)
	}
	for _, jump := range []time.Duration{-10 * 365 * keepAgain, 10 * 365 * keepAgain} {
		s, ok := r.keep.remembered.at(home, start.Add(jump), r.now)
		if !ok || s.again < r.now || s.again > r.now+keepAgain {
			t.Errorf("a date that jumps by %v: tried again after %v", jump, s.again-r.now)
		}
	}
	if err := os.WriteFile(file, []byte("[{]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.keep.remembered.open(); err == nil || len(r.keep.remembered.places) != 0 {
		t.Errorf("a torn file: %v, %d places", err, len(r.keep.remembered.places))
	}
	for i := range 3 * maxPlaces {
		r.keep.remembered.note(fmt.Sprint(i), silence{held: MostSilence}, time.Now(), r.now)
	}
	if got := len(r.keep.remembered.places); got != maxPlaces {
		t.Errorf("%d places", got)
	}
}

// A failure that is long ago is tried again on one connection; the node is always reached over another one.
func TestKeepAliveOneAtATime(t *testing.T) {
	r := newRouter(t, 2, 50*time.Second, false)
	r.lies = true
	r.run(30 * time.Minute)
	r.lies = false
	r.run(4 * keepAgain)
}

// A site that has IPv6 alone moves with its prefix.
func TestSiteMoves(t *testing.T) {
	var s site
	for i, c := range []struct {
		ip             string
		moved, another bool
	}{
		{"2001:db8:1::1", false, false}, {"2001:db8:1::2", false, false}, {"192.0.2.1", false, true}, {"2001:db8:2::2", true, false},
		{"192.0.2.1", false, false}, {"192.0.2.2", true, true}, {"2001:db8:2::1", false, false},
	} {
		if moved, another := s.see(netip.MustParseAddr(c.ip)); moved != c.moved || another != c.another {
			t.Errorf("%d, %s: moved %v, another %v", i, c.ip, moved, another)
		}
	}
}
