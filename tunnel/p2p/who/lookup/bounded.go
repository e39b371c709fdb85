package lookup

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
)

// kad-dht makes room for what a message's prefix announces, up to 4 MiB, before a byte of it came, on as many streams as a
// peer opens. Requests have some hundred bytes; an answer has 20 peers' addresses.
const (
	maxMessage = 64 << 10
	maxStreams = 16 // of one peer: kad-dht itself keeps one
)

// Reasons for refusals.
const (
	LargeMessage   = "large DHT message"
	TooManyStreams = "too many DHT streams"
)

// bounded is a host whose streams kad-dht reads no message larger than maxMessage from.
type bounded struct {
	host.Host
	refused func(reason string, p peer.ID, from string)

	mu   sync.Mutex
	open map[peer.ID]int
}

func bound(h host.Host, refused func(reason string, p peer.ID, from string)) *bounded {
	return &bounded{Host: h, refused: refused, open: make(map[peer.ID]int)}
}

func (b *bounded) SetStreamHandler(id protocol.ID, serve network.StreamHandler) {
	b.Host.SetStreamHandler(id, func(s network.Stream) {
		p := s.Conn().RemotePeer()
		if !b.enter(p) {
			b.refused(TooManyStreams, p, s.Conn().RemoteMultiaddr().String())
			_ = s.Reset()
			return
		}
		defer b.leave(p)
		serve(&framed{Stream: s, refused: b.refused})
	})
}

func (b *bounded) NewStream(ctx context.Context, p peer.ID, ids ...protocol.ID) (network.Stream, error) {
	s, err := b.Host.NewStream(ctx, p, ids...)
	if err != nil {
		return nil, err
	}
	return &framed{Stream: s, refused: b.refused}, nil
}

func (b *bounded) enter(p peer.ID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[p] == maxStreams {
		return false
	}
	b.open[p]++
	return true
}

func (b *bounded) leave(p peer.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[p]--; b.open[p] == 0 {
		delete(b.open, p)
	}
}

// framed ends a stream of messages, each behind its length as a varint, at the first one that is larger than maxMessage.
// It has one reader.
type framed struct {
	network.Stream
	refused func(reason string, p peer.ID, from string)
	prefix  []byte // of the next message, as far as it came
	left    uint64 // bytes of this message that are still to come
}

func (f *framed) Read(p []byte) (int, error) {
	n, err := f.Stream.Read(p)
	for rest := p[:n]; len(rest) > 0; {
		if f.left > 0 {
			k := min(f.left, uint64(len(rest)))
			f.left, rest = f.left-k, rest[k:]
			continue
		}
		f.prefix, rest = append(f.prefix, rest[0]), rest[1:]
		size, k := binary.Uvarint(f.prefix)
		if k < 0 || size > maxMessage {
			_ = f.Reset()
			f.refused(LargeMessage, f.Conn().RemotePeer(), f.Conn().RemoteMultiaddr().String())
			return 0, fmt.Errorf("a DHT message of %d bytes, %d at most", size, maxMessage)
		}
		if k > 0 {
			f.left, f.prefix = size, f.prefix[:0]
		}
	}
	return n, err
}
