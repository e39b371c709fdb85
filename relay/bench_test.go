package main

import (
	"io"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
)

// BenchmarkCircuit carries 64 KiB writes one way through a relay on loopback;
// both ends and the relay share this machine's cores.
func BenchmarkCircuit(b *testing.B) {
	from, to := newNode(b), newNode(b)
	done := make(chan error, 1)
	to.SetStreamHandler(protoEcho, func(s network.Stream) {
		_, err := io.Copy(io.Discard, s)
		done <- err
	})
	v := newTestServer(b, testConfig(), state(from, to))
	s := mustDial(b, v, from, to)
	buf := make([]byte, 64<<10)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if _, err := s.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.CloseWrite(); err != nil {
		b.Fatal(err)
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}
