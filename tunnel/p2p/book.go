package p2p

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/durable"
	"edgemesh/tunnel/p2p/endpoint"
)

const (
	// bookDelay gathers changes into one write.
	bookDelay = time.Second
	// maxBook bounds the file, in bytes.
	maxBook = 16 << 20
)

// book remembers over restarts where members said they may be dialed. When a site
// has lost its uplink, and its nodes their power, they find each other by it: no
// relay and no API tells them then. A wrong address does no harm, whoever answers
// there has to prove to be the member. A nil book remembers nothing.
//
// The file is JSON: {"PEER-ID": ["/ip4/192.168.1.11/tcp/4001", …], …}.
type book struct {
	path string

	mu    sync.Mutex
	m     map[peer.ID][]endpoint.Endpoint
	dirty chan struct{} // holds one: m differs from the file
}

// openBook reads the file at path; "" makes no book. The book is usable, and empty,
// also with an error.
func openBook(path string) (*book, error) {
	if path == "" {
		return nil, nil
	}
	b := &book{path: path, m: make(map[peer.ID][]endpoint.Endpoint), dirty: make(chan struct{}, 1)}
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return b, nil
	case err == nil && st.Size() > maxBook:
		return b, fmt.Errorf("members' addresses: %s has %d bytes", path, st.Size())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return b, fmt.Errorf("members' addresses: %w", err)
	}
	return b, b.parse(data)
}

// parse takes what is well-formed of a file.
func (b *book) parse(data []byte) error {
	var file map[string][]string
	if err := json.Unmarshal(data, &file); err != nil {
		return fmt.Errorf("members' addresses: %s: %w", b.path, err)
	}
	for text, addrs := range file {
		id, err := peer.Decode(text)
		if err != nil {
			continue
		}
		for _, s := range addrs {
			a, err := ma.NewMultiaddr(s)
			if err != nil {
				continue
			}
			if e, ok := endpoint.Parse(a); ok && e.Valid() && len(b.m[id]) < maxOffer {
				b.m[id] = append(b.m[id], e)
			}
		}
	}
	return nil
}

// known returns where p was last.
func (b *book) known(p peer.ID) []endpoint.Endpoint {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.m[p])
}

// note remembers where p is, if it is a member; one that has just been removed is
// not brought back by an attempt under way.
func (b *book) note(p peer.ID, eps []endpoint.Endpoint, member func() bool) {
	if b == nil || len(eps) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if member() && !slices.Equal(b.m[p], eps) {
		b.m[p] = slices.Clone(eps)
		b.changed()
	}
}

// retain forgets the peers that member does not accept.
func (b *book) retain(member func(peer.ID) bool) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for p := range b.m {
		if !member(p) {
			delete(b.m, p)
			b.changed()
		}
	}
}

// changed asks for a write. The caller holds mu.
func (b *book) changed() {
	select {
	case b.dirty <- struct{}{}:
	default:
	}
}

// run writes changes until ctx ends, and the last ones then. Errors go to failed.
func (b *book) run(ctx context.Context, failed func(error)) {
	for {
		select {
		case <-ctx.Done():
		case <-b.dirty:
			sleep(ctx, bookDelay)
			if err := b.save(); err != nil {
				failed(err)
			}
			continue
		}
		select {
		case <-b.dirty:
			if err := b.save(); err != nil {
				failed(err)
			}
		default:
		}
		return
	}
}

func (b *book) save() error {
	b.mu.Lock()
	file := make(map[string][]string, len(b.m))
	for p, eps := range b.m {
		for _, e := range eps {
			file[p.String()] = append(file[p.String()], e.Multiaddr().String())
		}
	}
	b.mu.Unlock()
	data, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return fmt.Errorf("members' addresses: %w", err)
	}
	if err := durable.WriteFile(b.path, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("members' addresses: %w", err)
	}
	return nil
}
