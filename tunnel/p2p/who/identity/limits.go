package identity

import (
	"fmt"
	"io"
	"math"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/libp2p/go-libp2p/p2p/net/connmgr"
	"github.com/libp2p/go-libp2p/x/rate"
	"github.com/libp2p/go-yamux/v5"
	"golang.org/x/sys/unix"

	"edgemesh/internal/memory"
	"edgemesh/tunnel/p2p/base/mux"
)

// Circuit limits of a relay. They are finite, so that a circuit is marked as limited on both ends, and so large that they
// never end one.
const (
	CircuitDuration = 365 * 24 * time.Hour
	CircuitData     = 1 << 60 // bytes in each direction
)

// maxConnsPerAddress replaces libp2p's 8 connections per IPv4 address or IPv6 /56: a whole site of nodes may be behind one
// address.
const maxConnsPerAddress = 1 << 20

// Limits bound what a process spends on others. The zero value is an agent's.
type Limits struct {
	// Handshakes bounds incoming connections of peers not known yet, 1024: a stranger costs some 15 KiB until it has shown
	// who it is, for 15 s at most.
	Handshakes int
	// PeerConns bounds one peer's connections, 64: it needs four, and leaves some behind for some minutes whenever its
	// address changes, which nothing but their own timeouts ends where no other path says that it has gone.
	PeerConns int
	// PeerStreams bounds one peer's streams, 2048: it needs some ten, a relay two for each peer that is reached through it, of the
	// circuit and of the channel for forwarded packets.
	PeerStreams int
	// Members is for how many peers there is room, 16384: each may have memberConns and memberStreams at a time.
	Members int
	// MoreStreams are added to what members need.
	MoreStreams int
	// Memory bounds what was received from all peers and waits to be read, and the buffers of circuits, in bytes: a
	// quarter of what this process may have.
	Memory int
	// PeerMemory bounds it for one peer: a quarter of Memory, at most 64 MiB, which are four whole windows, and at least
	// one and a half, so that a stream alone stays below three quarters of it.
	PeerMemory int
}

const (
	// memberConns are two paths by two transports; memberStreams are twice what an agent opens on them.
	memberConns, memberStreams = 4, 32
	memoryPart                 = 4
	minMemory                  = 64 << 20
	// MinPeerMemory is the least that one peer may hold.
	MinPeerMemory = streamWindow * 3 / 2
	maxPeerMemory = 4 * streamWindow
	// ownFiles of the process's file descriptors are never taken by connections.
	ownFiles = 256
)

// Pending is how many handshakes of unauthenticated peers l allows.
func (l Limits) Pending() int { return l.withDefaults().Handshakes }

// Authenticated is how many connections of authenticated peers l allows.
func (l Limits) Authenticated() int { return l.withDefaults().Members * memberConns }

func (l Limits) withDefaults() Limits {
	for v, d := range map[*int]int{&l.Handshakes: 1024, &l.PeerConns: 64, &l.PeerStreams: 2048, &l.Members: 1 << 14} {
		if *v <= 0 {
			*v = d
		}
	}
	if l.Memory <= 0 {
		l.Memory = MemoryPart(memoryPart)
	}
	if l.PeerMemory <= 0 {
		l.PeerMemory = max(min(l.Memory/memoryPart, maxPeerMemory), MinPeerMemory)
	}
	return l
}

// MemoryPart is one nth of the memory that this process may have: the host's, or what its control group allows; at
// least 64 MiB.
func MemoryPart(n int) int {
	total := uint64(math.MaxInt)
	var host unix.Sysinfo_t
	if unix.Sysinfo(&host) == nil {
		total = uint64(host.Totalram) * uint64(host.Unit) //nolint:unconvert // Totalram has 32 bits where int has
	}
	if group := memory.OfCgroup(); group > 0 {
		total = min(total, uint64(group))
	}
	return max(minMemory, int(min(total/uint64(n), math.MaxInt))) //nolint:gosec // n is a small number
}

// files is how many file descriptors connections may take.
func files() rcmgr.LimitVal {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil || l.Cur > math.MaxInt32 {
		return rcmgr.Unlimited
	}
	return rcmgr.LimitVal(max(int(l.Cur)-ownFiles, int(l.Cur)/2)) //nolint:gosec // checked above
}

// transient times the handshakes may be under way directly and over circuits: one relay's cannot use them up.
const transient = 4

// ResourceManager accounts for everything, holds l, and limits nothing by address: an overlay limits by membership instead,
// in the connection gater and the relay's ACL. libp2p's own limits (8 connections per address, 0.2 new ones per second)
// turn away nodes behind a common NAT long before a machine is loaded. Outgoing handshakes are not bounded, so that
// strangers do not keep a node from dialing.
func ResourceManager(l Limits) (network.ResourceManager, error) {
	l = l.withDefaults()
	conf := rcmgr.PartialLimitConfig{
		System: rcmgr.ResourceLimits{
			Conns:   rcmgr.LimitVal(l.Authenticated() + l.Handshakes),
			Streams: rcmgr.LimitVal(l.Members*memberStreams + l.MoreStreams),
			Memory:  rcmgr.LimitVal64(l.Memory), FD: files(),
		},
		// Package gate shares out l.Handshakes, and bounds those over circuits by relay. This is the last resort.
		Transient: rcmgr.ResourceLimits{ConnsInbound: rcmgr.LimitVal(transient * l.Handshakes)},
		PeerDefault: rcmgr.ResourceLimits{
			Conns: rcmgr.LimitVal(l.PeerConns), Streams: rcmgr.LimitVal(l.PeerStreams), Memory: rcmgr.LimitVal64(l.PeerMemory),
		},
	}.Build(rcmgr.InfiniteLimits)
	rm, err := rcmgr.NewResourceManager(
		rcmgr.NewFixedLimiter(conf),
		rcmgr.WithLimitPerSubnet(
			[]rcmgr.ConnLimitPerSubnet{{PrefixLength: 32, ConnCount: maxConnsPerAddress}},
			[]rcmgr.ConnLimitPerSubnet{{PrefixLength: 56, ConnCount: maxConnsPerAddress}}),
		rcmgr.WithConnRateLimiters(&rate.Limiter{}), // no rules: no limit
		rcmgr.WithMetricsDisabled(),                 // nobody reads them; each stream costs several events
	)
	if err != nil {
		return nil, fmt.Errorf("make resource manager: %w", err)
	}
	return rm, nil
}

// ConnManager never trims in practice: membership and traffic decide which connections live, not a count.
func ConnManager() (*connmgr.BasicConnMgr, error) {
	cm, err := connmgr.NewConnManager(100_000, 120_000, connmgr.WithSilencePeriod(time.Hour)) // it looks that often
	if err != nil {
		return nil, fmt.Errorf("make connection manager: %w", err)
	}
	return cm, nil
}

const (
	// streamWindow is how much of one stream may be under way unread, in bytes: enough for 1 Gbit/s at 130 ms.
	streamWindow = 16 << 20
	// windowPart is which part of a control group's memory that may be at most, and leastWindow the least that yamux takes.
	windowPart  = 64
	leastWindow = 256 << 10
	// relayWindow is how much a circuit may have under way to a relay at first, in bytes: 100 Mbit/s at 80 ms.
	relayWindow = 1 << 20
)

// window is the same where a control group allows so many bytes, 0 without a bound. Three peers' whole windows
// would fill a group of 64 MiB. It is yamux's, over TCP; libp2p lets nobody set QUIC's, which begin at 512 KiB and grow to
// 10 MiB a stream, 15 MiB a connection, as far as PeerMemory and Memory allow.
func window(group int64) uint32 {
	if group <= 0 {
		return streamWindow
	}
	return uint32(min(streamWindow, max(leastWindow, group/windowPart))) //nolint:gosec // at most streamWindow
}

// Muxer returns yamux for an agent's TCP connections. Streams have their whole window from the start: their owners read as
// fast as they can, and yamux widens it too late, as it knows only the round trip of an idle path: on a link of 100 Mbit/s
// and 50 ms with 1 % loss, half of the throughput was missing.
func Muxer() mux.Muxer {
	c := muxerConfig()
	c.InitialStreamWindowSize = window(memory.OfCgroup())
	c.MaxStreamWindowSize = c.InitialStreamWindowSize
	return mux.New(c)
}

// RelayMuxer is Muxer for a relay: a circuit's window begins smaller and grows with the throughput, because what its far end
// does not read waits in the relay. With yamux's own 256 KiB, which it widens too late (see Muxer), the pods' TCP left its slow
// start far below the line, and a flow of 15 s over 150 ms with 1 % loss had .13 to .23 of it in place of .42 to .61 (`make bench-relayed`).
func RelayMuxer() mux.Muxer {
	c := muxerConfig()
	c.InitialStreamWindowSize = relayWindow
	return mux.New(c)
}

// muxerConfig is common to both. A message is one TLS record, or four on a fast path, which hold a super-segment. The
// timeouts are long: a slow path under load answers late and is not dead.
func muxerConfig() *yamux.Config {
	c := yamux.DefaultConfig()
	c.LogOutput = io.Discard
	c.ReadBufSize = 0                     // the security layer has its own
	c.MaxIncomingStreams = math.MaxUint32 // the resource manager bounds them
	c.MaxStreamWindowSize = streamWindow
	c.MaxMessageSize = 64 << 10
	c.KeepAliveInterval = 30 * time.Second
	c.MeasureRTTInterval = 24 * time.Hour // after a first time; each wakes both ends, and a radio
	c.ConnectionWriteTimeout = 15 * time.Second
	return c
}
