// Package upkeep counts what this node sends and receives: without a pod's packet asking for it, by purpose, and what carries those.
package upkeep

import (
	"maps"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Purpose is what bytes are for.
type Purpose string

// What upkeep consists of.
const (
	Relay Purpose = "relay" // connections to relays: handshakes, reservations, keep-alive, the DHT, circuits being made
	Peer  Purpose = "peer"  // connections to peers while no pod uses them: handshakes, probes, keep-alive
	NAT   Purpose = "nat"   // queries of what the NAT does
	API   Purpose = "api"   // the API, or a cache on this host
)

// every is how often flows are read: what carries pods' packets within it is no upkeep.
const every = 10 * time.Second

// Bytes are IP bytes, headers included.
type Bytes struct{ Tx, Rx uint64 }

// Budget is the sum. All methods may be called on nil, which counts nothing.
type Budget struct {
	Since time.Time
	wire  Wire

	mu      sync.Mutex // a leaf: guards what follows
	sums    map[Purpose]Bytes
	flows   map[*Flow]struct{}
	carried Bytes // of connections in times in which they carried pods' bytes
	quic    Bytes // of all connections over QUIC
	other   Bytes // of datagrams that are neither QUIC's nor sealed, as far as they are in sums
}

// New returns an empty Budget.
func New() *Budget {
	return &Budget{Since: time.Now(), sums: map[Purpose]Bytes{}, flows: map[*Flow]struct{}{}}
}

// Add counts bytes.
func (b *Budget) Add(p Purpose, tx, rx int) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sums[p] = b.sums[p].plus(Bytes{uint64(tx), uint64(rx)}) //nolint:gosec // lengths
}

// Flow is a connection that is counted until End.
type Flow struct {
	b       *Budget
	purpose Purpose
	quic    bool // counted by Wire as well
	read    func() (Bytes, bool)
	carried func() uint64 // pods' bytes so far; nil: none

	last  Bytes // guarded by b.mu, as is pods
	pods  uint64
	ended bool
}

// Follow counts a connection, of which read returns the bytes so far. Those of a time in which it carries pods' bytes are not upkeep.
func (b *Budget) Follow(p Purpose, read func() (Bytes, bool), carried func() uint64) *Flow {
	return b.follow(&Flow{b: b, purpose: p, read: read, carried: carried})
}

// FollowQUIC is Follow for a connection on a socket that Wire counts.
func (b *Budget) FollowQUIC(p Purpose, read func() (Bytes, bool), carried func() uint64) *Flow {
	return b.follow(&Flow{b: b, purpose: p, quic: true, read: read, carried: carried})
}

func (b *Budget) follow(f *Flow) *Flow {
	if b != nil {
		b.mu.Lock()
		b.flows[f] = struct{}{}
		b.mu.Unlock()
	}
	return f
}

// End counts what is left. The connection must still be open.
func (f *Flow) End() {
	if f == nil || f.b == nil {
		return
	}
	f.sample()
	f.b.mu.Lock()
	defer f.b.mu.Unlock()
	f.ended = true
	delete(f.b.flows, f)
}

// sample counts what has come and gone since the last time.
func (f *Flow) sample() {
	now, ok := f.read()
	pods := uint64(0)
	if f.carried != nil {
		pods = f.carried()
	}
	f.b.mu.Lock()
	defer f.b.mu.Unlock()
	if !ok || f.ended || now.Tx < f.last.Tx || now.Rx < f.last.Rx {
		return
	}
	more := now.less(f.last)
	if pods == f.pods {
		f.b.sums[f.purpose] = f.b.sums[f.purpose].plus(more)
	} else {
		f.b.carried = f.b.carried.plus(more)
	}
	if f.quic {
		f.b.quic = f.b.quic.plus(more)
	}
	f.last, f.pods = now, pods
}

// Run reads the flows now and then until done is closed.
func (b *Budget) Run(done <-chan struct{}) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			b.sample()
		}
	}
}

func (b *Budget) sample() {
	b.mu.Lock()
	flows := maps.Clone(b.flows)
	b.mu.Unlock()
	for f := range flows {
		f.sample()
	}
}

// Sums returns the bytes so far, by purpose. What left or arrived beside connections, as packets that punch holes do and dials that
// fail, is for peers.
func (b *Budget) Sums() map[Purpose]Bytes {
	if b == nil {
		return nil
	}
	b.sample()
	b.mu.Lock()
	defer b.mu.Unlock()
	more := b.wire.All.bytes().less(b.wire.Sealed.bytes()).less(b.quic).less(b.other)
	b.other = b.other.plus(more)
	b.sums[Peer] = b.sums[Peer].plus(more)
	return maps.Clone(b.sums)
}

// Carried returns the bytes so far of what carried pods' packets: theirs, the overhead of each, acknowledgements and repetitions.
func (b *Budget) Carried() Bytes {
	if b == nil {
		return Bytes{}
	}
	b.sample()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.carried.plus(b.wire.Sealed.bytes())
}

// Wire is where sockets count; never nil.
func (b *Budget) Wire() *Wire {
	if b == nil {
		return new(Wire)
	}
	return &b.wire
}

// TCP returns what reads the bytes of a TCP connection from the kernel (tcp(7), TCP_INFO): segments without data, keep-alives and
// retransmissions are in. It is false where c is not one, or closed.
func TCP(c any) func() (Bytes, bool) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return func() (Bytes, bool) { return Bytes{}, false }
	}
	return func() (b Bytes, ok bool) {
		rc, err := sc.SyscallConn()
		if err != nil {
			return b, false
		}
		_ = rc.Control(func(fd uintptr) {
			i, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			if err != nil {
				return
			}
			head := uint64(40)
			if sa, err := unix.Getsockname(int(fd)); err == nil {
				if s6, v6 := sa.(*unix.SockaddrInet6); v6 && [12]byte(s6.Addr[:12]) != [12]byte{10: 0xff, 11: 0xff} {
					head = 60
				}
			}
			const timestamps = 1 // TCPI_OPT_TIMESTAMPS of linux/tcp.h
			if i.Options&timestamps != 0 {
				head += 12
			}
			b, ok = Bytes{i.Bytes_sent + head*uint64(i.Segs_out), i.Bytes_received + head*uint64(i.Segs_in)}, true
		})
		return b, ok
	}
}
