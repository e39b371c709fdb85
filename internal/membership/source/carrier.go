package source

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/signed"
)

// Carrier is a source whose membership counts as it is, and which collects what the cluster's controllers have signed, to be shown and passed
// on at relays that pin their key.
type Carrier struct {
	Source
	key      crypto.PrivKey
	stateDir string
	log      *slog.Logger

	mu     sync.Mutex // a leaf, except for the book
	signer peer.ID
	book   *signed.Book
}

// Carry returns src as a Carrier. key is this program's; the statements are kept in stateDir.
func Carry(src Source, key crypto.PrivKey, stateDir string, log *slog.Logger) *Carrier {
	return &Carrier{Source: src, key: key, stateDir: stateDir, log: log}
}

// Book has the statements; nil: no controller signs.
func (c *Carrier) Book() *signed.Book {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.book
}

// Start implements Source.
func (c *Carrier) Start(ctx context.Context) (s mesh.State, warning, err error) {
	s, warning, err = c.Source.Start(ctx)
	c.take(s)
	return s, warning, err
}

// Watch implements Source.
func (c *Carrier) Watch(ctx context.Context, onState func(mesh.State), onErr func(error)) {
	c.Source.Watch(ctx, func(s mesh.State) { c.take(s); onState(s) }, onErr)
}

func (c *Carrier) take(s mesh.State) {
	signer, err := signed.ParseSigner(s.Signer)
	if err != nil {
		return // a snapshot, for instance: what is carried stays
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.book == nil || c.signer != signer {
		c.signer, c.book = signer, signed.NewBook([]peer.ID{signer})
		load(c.book, c.key, c.stateDir, c.log)
	}
	if _, err := c.book.Add(slices.Concat(s.Signed, s.News)...); err != nil {
		c.log.Debug("some of what is signed is not the controllers'", "err", err) // the operator's, which other nodes pin
	}
}
