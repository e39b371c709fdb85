package peers

import (
	"context"
	"log/slog"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/nat/punch"
	"edgemesh/tunnel/p2p/path/book"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/reach"
	"edgemesh/tunnel/p2p/who/members"
)

// Config is what a Table needs; all of it is required.
type Config struct {
	Self    peer.ID
	Members *members.Gater
	Paths   paths.Config
	Punch   *punch.Puncher
	Reach   *reach.Config
	Relays  Relays
	// Carried is woken when a path that is new, or was quiet, carries data.
	Carried wake.One
	Book    *book.Book
	// Metered reports whether each byte is paid for.
	Metered func() bool
	// Serves reports whether this node is a peer's relay.
	Serves func(peer.ID) bool
	Ctx    context.Context //nolint:containedctx // the node's lifetime
	Spawn  func(func()) bool
	Now    func() ladder.Time
	Log    *slog.Logger
}

// Relays are those that this node uses.
type Relays interface {
	// Wants reports whether p is a relay that this node wants to be connected to, OverTCP returns those with a TCP connection.
	Wants(p peer.ID) bool
	OverTCP() map[peer.ID]bool
	// SuspectAll has all of them pinged immediately.
	SuspectAll()
}

// env is what a Table is made of, as its peers see it.
type env struct {
	Config
	events *dispatcher
	asking asking
}

// name is what logs call a peer.
func (t *env) name(p peer.ID) string { return t.Members.View().Name(p) }

// kept reports whether a peer stays connected while nobody uses it: one of the two is the
// other's relay.
func (t *env) kept(id peer.ID) bool { return t.Relays.Wants(id) || t.Serves(id) }
