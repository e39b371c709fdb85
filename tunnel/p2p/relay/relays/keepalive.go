package relays

import (
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/relay/relays/choice"
)

const (
	// keepFirst is how long a TCP connection to a relay may be silent at first, and MostSilence in the end: routers that forget
	// TCP within two minutes are not worth more. What was too long is cut to two thirds, but not below keepLeast.
	keepFirst   = time.Minute
	MostSilence = 110 * time.Second
	keepLeast   = 10 * time.Second
	// keepAgain is when what was too long is tried again, twice as late each time that it fails then, up to keepAgainMost: a router
	// may forget at night what it kept by day. keepBlame how soon a relay has to be back for the silence to have been
	// what ended its connection.
	keepAgain     = 24 * time.Hour
	keepAgainMost = 16 * keepAgain
	keepBlame     = 30 * time.Second
	// keepLook is how often connections are looked at. That sends nothing.
	keepLook = 10 * time.Second
	// keepExact is how exactly the kernel keeps its timer.
	keepExact = 1500 * time.Millisecond
)

// silence is how long routers on the way remember a TCP connection to a relay, as far as is known. Times are Config.Now's.
type silence struct {
	held   time.Duration // the longest that a connection survived
	failed time.Duration // what one did not survive; 0: nothing
	again  time.Duration // when as much is tried again
	pause  time.Duration // until then, when it failed last
}

// cut is what is safe after failed.
func (s *silence) cut() time.Duration { return max(s.failed*2/3, keepLeast) }

// limit is the most that may be tried.
func (s *silence) limit(now time.Duration) time.Duration {
	if s.failed > 0 && now < s.again {
		return min(MostSilence, s.cut())
	}
	return MostSilence
}

// safe is what connections may be silent, and longer what one of them may, to learn. After a failure the others wait until that one
// has survived more, also when the failure is long ago.
func (s *silence) safe(now time.Duration) time.Duration {
	least := keepFirst
	if s.failed > 0 {
		least = s.cut()
	}
	return min(max(s.held, least), s.limit(now))
}

func (s *silence) longer(now time.Duration) time.Duration {
	return min(s.safe(now)*4/3, s.limit(now))
}

// survived notes a silence after which the relay answered, ended one after which it did not, or a router reset the connection.
func (s *silence) survived(d time.Duration) { s.held = max(s.held, d) }

func (s *silence) ended(now, d time.Duration) {
	if s.pause == 0 || now >= s.again { // else it is the same failure, or that of a shorter one
		s.pause = max(keepAgain, min(2*s.pause, keepAgainMost))
	}
	s.failed, s.again, s.held = d, now+s.pause, 0
}

// keepAlives has the kernel keep connections to relays alive over TCP. It belongs to the watch, except for what was learned.
type keepAlives struct {
	*common
	clients func() []*client
	kept    map[network.Conn]*keptAlive
	looked  time.Duration
	lost    map[peer.ID]keptLoss

	remembered remembered

	mu sync.Mutex // taken before remembered's: guards silence, place, kept and lost
	silence
	place string // where relays see the site; "" until one has said so
}

// keptAlive is one connection as it was at the last look.
type keptAlive struct {
	relay peer.ID
	heard time.Time
	probe time.Duration        // after this silence
	ended func() time.Duration // how long it had been silent when it ended
	moved bool                 // the site has moved since it was heard: its end says nothing
}

// keptLoss is a silence that a connection did not survive.
type keptLoss struct {
	silence, at time.Duration
}

// enter puts what was learned at a place in force, which is nothing at a new one: the router is another. moved: the site was
// elsewhere until now.
func (k *keepAlives) enter(place string, moved bool, date time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if place != k.place {
		if known, ok := k.remembered.at(place, date, k.Now()); ok || moved {
			k.silence = known
		}
		k.place = place
	}
	if !moved {
		return
	}
	clear(k.lost)
	for _, was := range k.kept {
		was.moved = true
	}
}

// look learns from what has happened since the last look, and sets the kernel's timers.
func (k *keepAlives) look(at time.Time, now time.Duration) {
	if k.looked > 0 && now-k.looked < keepLook {
		return
	}
	k.looked = now
	k.mu.Lock()
	defer k.mu.Unlock()
	order := k.live()
	for conn, was := range k.kept {
		if !slices.Contains(order, conn) && was.probe > 0 && !was.moved && was.ended() >= was.probe-keepExact {
			k.lost[was.relay] = keptLoss{was.probe, now}
		}
	}
	seen := make(map[network.Conn]*keptAlive)
	for _, conn := range order {
		heard, was := k.Heard(conn), k.kept[conn]
		if was == nil {
			was = &keptAlive{relay: conn.RemotePeer(), heard: heard}
			k.blame(was.relay, now)
		}
		switch d := heard.Sub(was.heard); {
		case d <= keepExact: // as the kernel counts
		case was.moved:
			was.moved = false
		case was.probe > 0 && d >= was.probe-keepExact:
			k.survived(min(d, was.probe))
		}
		was.heard, seen[conn] = heard, was
	}
	k.kept = seen
	k.set(order, at, now)
	if k.place != "" && k.silence != (silence{}) && k.remembered.note(k.place, k.silence, at, now) {
		k.Spawn(func() {
			if err := k.remembered.save(); err != nil {
				k.Log.Warn("how long routers remember connections is not written: it is learned again after a restart", "err", err)
			}
		})
	}
}

// live returns the connections over TCP to relays that are wanted. A member's are its paths, which are probed.
func (k *keepAlives) live() (out []network.Conn) {
	for _, c := range k.clients() {
		if c.demand.connection() && !k.Members.View().IsMember(c.info.ID) {
			out = append(out, slices.DeleteFunc(c.conns(), func(conn network.Conn) bool { return k.Heard(conn).IsZero() })...)
		}
	}
	return out
}

// blame follows a connection to a relay: if it is the one after a loss, the relay was there, and the silence too long.
func (k *keepAlives) blame(relay peer.ID, now time.Duration) {
	if l, ok := k.lost[relay]; ok && now-l.at <= keepBlame {
		k.ended(now, l.silence)
	}
	delete(k.lost, relay)
}

// set sets the timers so that all connections are probed at the same time, which wakes a radio once, but one that is not the
// home's, where longer silences are tried.
func (k *keepAlives) set(order []network.Conn, at time.Time, now time.Duration) {
	safe, longer := k.safe(now), k.longer(now)
	spare := k.spare(order)
	if longer == safe {
		spare = nil // nothing is left to try
	}
	due := safe
	for _, conn := range order {
		if s := at.Sub(k.kept[conn].heard); conn != spare && s < safe {
			due = min(due, safe-s)
		}
	}
	for _, conn := range order {
		was := k.kept[conn]
		s, probe := at.Sub(was.heard), safe
		switch {
		case conn == spare:
			probe = longer
		case s >= safe: // a probe is under way
			continue
		case s+due >= safe/2:
			probe = s + due
		}
		if d := probe - was.probe; d > keepExact || d < -keepExact {
			was.probe = probe.Round(time.Second)
			was.ended = k.KeepAlive(conn, was.probe)
		}
	}
}

// spare is the connection on which longer silences are tried; nil where there is one relay.
func (k *keepAlives) spare(order []network.Conn) network.Conn {
	var all []peer.ID
	for _, c := range k.clients() {
		all = append(all, c.info.ID)
	}
	if len(all) < 2 {
		return nil
	}
	home := choice.Homes(k.Self, all)[0]
	var spare network.Conn
	homely := false
	for _, conn := range order {
		if conn.RemotePeer() == home {
			homely = true
		} else {
			spare = conn
		}
	}
	if !homely {
		return nil
	}
	return spare
}
