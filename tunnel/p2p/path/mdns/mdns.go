// Package mdns finds members on the local network by multicast DNS (RFC 6762), when nothing else can: relay and API are
// out of reach, and the two members never talked to each other before.
//
//	mdns.go     the finder: queries, answers, what was heard
//	message.go  the messages
//	socket.go   multicast sockets of both IP versions
//
// A node answers queries that come from the LAN's own addresses and name its peer ID, which members know, and announces
// itself when it starts; it does not answer queries for all members. It sends nothing but its peer ID and its ports, signed with
// the address that they leave from. What is not signed, as by former versions, is only taken while nothing signed was
// heard of that member. The handshake proves who is there.
package mdns

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/nat/uplinks"
)

const (
	// answerEvery is the least time between two answers on one interface (RFC 6762 section 6).
	answerEvery = time.Second
	// maxPerSecond bounds the messages that are parsed; the others are dropped.
	maxPerSecond = 200
	// maxPlaces bounds the addresses remembered for one member, placeTTL how long they are.
	maxPlaces = 4
	placeTTL  = ttl * time.Second
	// compareEvery is how often the uplinks are compared with those joined if nobody calls Look.
	compareEvery = 15 * time.Second
)

// queryPauses are the pauses between queries for one member: a multicast packet is easily lost on a radio link.
func queryPauses() []time.Duration {
	return []time.Duration{250 * time.Millisecond, time.Second, 2 * time.Second}
}

// announcePauses are the pauses before the announcements at the start (RFC 6762 section 8.3).
func announcePauses() []time.Duration { return []time.Duration{0, time.Second, 4 * time.Second} }

// Place is where a member listens, as it was heard; with port 0 it does not.
type Place struct {
	Addr     netip.Addr
	TCP, UDP uint16
}

// Config is what a Finder needs.
type Config struct {
	Self     string // this node's peer ID
	TCP, UDP uint16 // the ports it listens on
	// Uplinks returns the interfaces to use; it is called every few seconds.
	Uplinks func() []uplinks.Link
	// IsMember reports whom to remember.
	IsMember func(id string) bool
	// Sign signs with this node's key, and Verify checks what a member has signed.
	Sign   func([]byte) ([]byte, error)
	Verify func(id string, data, sig []byte) bool
	Mark   uint32 // SO_MARK of the sockets
	Log    *slog.Logger
}

// Finder queries and answers.
type Finder struct {
	cfg   Config
	socks []socket
	look  wake.One // the uplinks may have changed

	mu       sync.Mutex // a leaf: guards what follows
	uplinks  []uplinks.Link
	found    map[string]places
	waiting  map[string]chan struct{} // closed when something is heard of a member
	answered map[int]time.Time        // by interface
	second   time.Time                // when the current second began
	count    int                      // messages in it
}

// places are where a member was heard.
type places struct {
	at     time.Time
	signed bool    // by the member itself; nothing else counts then
	list   []Place // signed ones: the newest first; else the oldest, so that what is forged later displaces nothing
}

// New opens the sockets. An error means that this node can find no member on the LAN. One IP version is enough.
func New(c Config) (*Finder, error) {
	f := &Finder{cfg: c, look: wake.NewOne(), found: make(map[string]places), waiting: make(map[string]chan struct{}), answered: make(map[int]time.Time)}
	s4, err4 := open4(c.Mark)
	if err4 == nil {
		f.socks = append(f.socks, s4)
	}
	s6, err6 := open6(c.Mark)
	if err6 == nil {
		f.socks = append(f.socks, s6)
	}
	if len(f.socks) == 0 {
		return nil, fmt.Errorf("multicast DNS: %w", err4)
	}
	return f, nil
}

// Run answers until ctx ends, and closes the sockets.
func (f *Finder) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	f.join()
	for _, s := range f.socks {
		wg.Go(func() { f.read(s) })
	}
	wg.Go(func() { f.announce(ctx) })
	tick := time.NewTicker(compareEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-f.look:
			f.join()
		case <-tick.C:
			f.join()
		}
	}
	f.Close()
}

// Look says that the uplinks may have changed. A nil Finder has nothing to look at.
func (f *Finder) Look() {
	if f != nil {
		f.look.Wake()
	}
}

// Close closes the sockets of a Finder that does not run.
func (f *Finder) Close() {
	for _, s := range f.socks {
		s.Close()
	}
}

// join adopts the uplinks as they are now, and announces this node on new ones.
func (f *Finder) join() {
	ups := f.cfg.Uplinks()
	f.mu.Lock()
	var fresh []uplinks.Link
	for _, u := range ups {
		if !slices.ContainsFunc(f.uplinks, func(x uplinks.Link) bool { return x.Index == u.Index && slices.Equal(x.Prefixes, u.Prefixes) }) {
			fresh = append(fresh, u)
		}
	}
	f.uplinks = ups
	f.mu.Unlock()
	for _, u := range fresh {
		for _, s := range f.socks {
			if err := s.join(u.Index); err != nil {
				f.cfg.Log.Debug("multicast group not joined: members there are not found", "interface", u.Index, "err", err)
			}
		}
		f.reply(u)
	}
}

// announce announces this node on all uplinks.
func (f *Finder) announce(ctx context.Context) {
	for _, pause := range announcePauses() {
		if !wake.Sleep(ctx, pause) {
			return
		}
		f.mu.Lock()
		ups := f.uplinks
		f.mu.Unlock()
		for _, u := range ups {
			f.sendOn(u, f.answer)
		}
	}
}

// send multicasts b on every uplink.
func (f *Finder) send(b []byte) {
	f.mu.Lock()
	ups := f.uplinks
	f.mu.Unlock()
	for _, u := range ups {
		f.sendOn(u, func(netip.Addr) ([]byte, error) { return b, nil })
	}
}

// answer is this node's answer, sent from one of its addresses.
func (f *Finder) answer(from netip.Addr) ([]byte, error) {
	c := claim{ports: ports{f.cfg.TCP, f.cfg.UDP}}
	var err error
	if c.sig, err = f.cfg.Sign(said(f.cfg.Self, from, c.ports)); err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	return answer(f.cfg.Self, c)
}

// sendOn multicasts on one uplink, over each IP version that the uplink has an address of, what message makes for that
// address: others dial the packet's source.
func (f *Finder) sendOn(u uplinks.Link, message func(from netip.Addr) ([]byte, error)) {
	for _, s := range f.socks {
		for _, p := range u.Prefixes {
			if p.Addr().Is4() != s.is4() {
				continue
			}
			b, err := message(p.Addr())
			if err == nil {
				err = s.send(b, u.Index, p.Addr())
			}
			if err != nil {
				f.cfg.Log.Debug("multicast DNS message not sent", "interface", u.Index, "err", err)
			}
			break
		}
	}
}

// Find queries for a member and returns where it is, as soon as it is heard; nil when ctx ended first.
func (f *Finder) Find(ctx context.Context, id string) []Place {
	b, err := query(id)
	if err != nil {
		return nil
	}
	pauses := queryPauses()
	for {
		list, heard := f.known(id)
		if len(list) > 0 {
			return list
		}
		f.send(b)
		pause := pauses[0]
		if len(pauses) > 1 {
			pauses = pauses[1:]
		}
		select {
		case <-heard:
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// Forget drops what was heard of a member: it was not there.
func (f *Finder) Forget(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.found, id)
}

// Retain forgets who is not a member.
func (f *Finder) Retain() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.found {
		if !f.cfg.IsMember(id) {
			delete(f.found, id)
		}
	}
}

// known returns where a member was heard lately, and a channel that is closed when it is heard again.
func (f *Finder) known(id string) ([]Place, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting[id] == nil {
		f.waiting[id] = make(chan struct{})
	}
	if p := f.found[id]; time.Since(p.at) < placeTTL {
		return slices.Clone(p.list), f.waiting[id]
	}
	return nil, f.waiting[id]
}

// read takes messages from one socket until it is closed.
func (f *Finder) read(s socket) {
	buf := make([]byte, maxMessage)
	for {
		n, index, from, err := s.read(buf)
		if err != nil {
			return
		}
		up, ok := f.accepts(index, from)
		if !ok {
			continue
		}
		m, err := parse(buf[:n])
		if err != nil {
			continue
		}
		if slices.Contains(m.queried, f.cfg.Self) {
			f.reply(up)
		}
		for id, c := range m.answers {
			f.heard(id, from, c)
		}
	}
}

// accepts reports whether a message is parsed: it came in on an uplink, from that uplink's own network (RFC 6762 section
// 11), and there were not too many in this second.
func (f *Finder) accepts(index int, from netip.Addr) (uplinks.Link, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.Sub(f.second) >= time.Second {
		f.second, f.count = now, 0
	}
	if f.count++; f.count > maxPerSecond {
		return uplinks.Link{}, false
	}
	for _, u := range f.uplinks {
		if u.Index == index && slices.ContainsFunc(u.Prefixes, func(p netip.Prefix) bool { return p.Contains(from) }) {
			return u, true
		}
	}
	return uplinks.Link{}, false
}

// reply answers on one uplink, not too often.
func (f *Finder) reply(u uplinks.Link) {
	f.mu.Lock()
	now := time.Now()
	soon := now.Sub(f.answered[u.Index]) < answerEvery
	if !soon {
		f.answered[u.Index] = now
	}
	f.mu.Unlock()
	if soon {
		return
	}
	f.sendOn(u, f.answer)
}

// heard notes where a member is, and wakes who waits for it.
func (f *Finder) heard(id string, from netip.Addr, c claim) {
	if id == f.cfg.Self || c.ports == (ports{}) || !f.cfg.IsMember(id) {
		return
	}
	signed := c.sig != nil
	if signed && !f.cfg.Verify(id, said(id, from, c.ports), c.sig) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.note(id, Place{from, c.tcp, c.udp}, signed) {
		return
	}
	if w := f.waiting[id]; w != nil {
		close(w)
		delete(f.waiting, id)
	}
}

// note remembers a place, and reports whether it counts. The caller holds mu.
func (f *Finder) note(id string, at Place, signed bool) bool {
	old := f.found[id]
	fresh := time.Since(old.at) < placeTTL
	if fresh && old.signed && !signed {
		return false
	}
	if !fresh || signed && !old.signed {
		old.list = nil
	}
	others := slices.DeleteFunc(slices.Clone(old.list), func(p Place) bool { return p.Addr == at.Addr })
	switch {
	case signed:
		others = slices.Insert(others, 0, at)
		others = others[:min(len(others), maxPlaces)]
	case len(others) == maxPlaces:
		return false
	default:
		others = append(others, at)
	}
	f.found[id] = places{time.Now(), signed, others}
	return true
}
