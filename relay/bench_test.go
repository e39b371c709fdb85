package main

import (
	"io"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
)

// BenchmarkCircuit carries 64 KiB writes one way through a relay on loopback;
// both ends and the relay share this machine's cores.
func BenchmarkCircuit(b *testing.B) { benchmarkCircuit(b, 0) }

func benchmarkCircuit(b *testing.B, mbit int) {
	b.Helper()
	from, to := newNode(b), newNode(b)
	done := make(chan error, 1)
	to.SetStreamHandler(protoEcho, func(s network.Stream) {
		_, err := io.Copy(io.Discard, s)
		done <- err
	})
	conf := testConfig()
	conf.limits.Bandwidth = mbit
	v := newTestServer(b, conf, state(from, to))
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

// BenchmarkCircuitShared is the same where the relay divides a bandwidth that one flow does not reach.
func BenchmarkCircuitShared(b *testing.B) { benchmarkCircuit(b, 1_000_000) }
