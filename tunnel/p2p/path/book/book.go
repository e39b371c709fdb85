// Package book remembers across restarts where members said they may be dialed. When a
// site has lost its uplink, and its nodes their power, they find each other by it: no
// relay and no API helps them then. A wrong address does no harm: whoever answers there has
// to prove to be the member.
//
// The file is JSON: {"PEER-ID": ["/ip4/192.168.1.11/tcp/4001", …], …}.
package book

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
	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/base/endpoint"
)

const (
	// writeDelay gathers changes into one write.
	writeDelay = time.Second
	// maxBytes bounds the file, and maxAddrs the addresses of one member, as many as an
	// offer has.
	maxBytes = 16 << 20
	maxAddrs = 24
)

// Book has the addresses. A nil one remembers nothing.
type Book struct {
	path    string
	changed wake.One // the addresses differ from the file

	mu sync.Mutex // a leaf
	m  map[peer.ID][]endpoint.Endpoint
}

// Open reads the file at path; "" makes no book. The book is usable, and empty,
// also with an error.
func Open(path string) (*Book, error) {
	if path == "" {
		return nil, nil
	}
	b := &Book{path: path, changed: wake.NewOne(), m: make(map[peer.ID][]endpoint.Endpoint)}
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return b, nil
	case err == nil && st.Size() > maxBytes:
		return b, fmt.Errorf("members' addresses: %s has %d bytes", path, st.Size())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return b, fmt.Errorf("members' addresses: %w", err)
	}
	return b, b.parse(data)
}

// parse reads the entries of a file that are well-formed.
func (b *Book) parse(data []byte) error {
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
			if e, ok := endpoint.Parse(a); ok && e.Valid() && len(b.m[id]) < maxAddrs {
				b.m[id] = append(b.m[id], e)
			}
		}
	}
	return nil
}

// Known returns where p was last.
func (b *Book) Known(p peer.ID) []endpoint.Endpoint {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.m[p])
}

// Note remembers where p is if it is a member: a running attempt must not bring back a
// member that has just been removed.
func (b *Book) Note(p peer.ID, eps []endpoint.Endpoint, member func() bool) {
	if b == nil || len(eps) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if member() && !slices.Equal(b.m[p], eps) {
		b.m[p] = slices.Clone(eps)
		b.changed.Wake()
	}
}

// Retain forgets the peers that member does not accept.
func (b *Book) Retain(member func(peer.ID) bool) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for p := range b.m {
		if !member(p) {
			delete(b.m, p)
			b.changed.Wake()
		}
	}
}

// Run writes changes until ctx ends, the last ones included. failed gets the errors.
func (b *Book) Run(ctx context.Context, failed func(error)) {
	for {
		select {
		case <-ctx.Done():
		case <-b.changed:
			wake.Sleep(ctx, writeDelay)
			if err := b.save(); err != nil {
				failed(err)
			}
			continue
		}
		select {
		case <-b.changed:
			if err := b.save(); err != nil {
				failed(err)
			}
		default:
		}
		return
	}
}

func (b *Book) save() error {
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
