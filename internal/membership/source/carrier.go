package source

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

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

	news   chan mesh.State // the latest that was not taken yet
	signer peer.ID         // book's
	book   atomic.Pointer[signed.Book]
}

// Carry returns src as a Carrier. key is this program's; the statements are kept in stateDir.
func Carry(src Source, key crypto.PrivKey, stateDir string, log *slog.Logger) *Carrier {
	return &Carrier{Source: src, key: key, stateDir: stateDir, log: log, news: make(chan mesh.State, 1)}
}

// Book has the statements; nil: no controller signs.
func (c *Carrier) Book() *signed.Book { return c.book.Load() }

// Start implements Source. What is signed is taken once Watch runs.
func (c *Carrier) Start(ctx context.Context) (s mesh.State, warning, err error) {
	s, warning, err = c.Source.Start(ctx)
	c.put(s)
	return s, warning, err
}

// Watch implements Source. No State waits for signatures to be checked, and for the disk.
func (c *Carrier) Watch(ctx context.Context, onState func(mesh.State), onErr func(error)) {
	var taking sync.WaitGroup
	defer taking.Wait()
	defer close(c.news)
	taking.Go(func() {
		for s := range c.news {
			if ctx.Err() == nil {
				c.take(s)
			}
		}
	})
	c.Source.Watch(ctx, func(s mesh.State) {
		onState(s)
		c.put(s)
	}, onErr)
}

// put replaces what was not taken yet: the whole comes again.
func (c *Carrier) put(s mesh.State) {
	select {
	case <-c.news:
	default:
	}
	c.news <- s
}

func (c *Carrier) take(s mesh.State) {
	signer, err := signed.ParseSigner(s.Signer)
	if err != nil {
		return // what is carried stays
	}
	book := c.book.Load()
	if book == nil || c.signer != signer {
		c.signer, book = signer, signed.NewBook([]peer.ID{signer})
		load(book, c.key, c.stateDir, c.log)
		defer c.book.Store(book) // with what follows
	}
	if _, err := book.Add(slices.Concat(s.Signed, s.News)...); err != nil {
		c.log.Debug("some of what is signed is not the controllers'", "err", err) // the operator's, which other nodes pin
	}
}
