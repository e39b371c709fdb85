package main

import (
	"io"
	"sync/atomic"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"

	"edgemesh/test/fair"
)

// sink counts what a node receives.
func (n node) sink() *atomic.Int64 {
	var got atomic.Int64
	n.SetStreamHandler(protoEcho, func(s network.Stream) {
		b := make([]byte, 64<<10)
		for {
			k, err := s.Read(b)
			got.Add(int64(k))
			if err != nil {
				s.Close()
				return
			}
		}
	})
	return &got
}

// pour writes to s until it ends.
func pour(s io.Writer) {
	b := make([]byte, 64<<10)
	for {
		if _, err := s.Write(b); err != nil {
			return
		}
	}
}

// floodBeside has one member send through many circuits over several connections, and another one through one: what arrives of
// each until the second has got so many bytes.
func floodBeside(t *testing.T, mbit int, bytes int64) (flooder, modest int64) {
	const hosts, targets = 4, 4
	greedy := newNode(t)
	from, far := newNode(t), newNode(t)
	all := []node{greedy, from, far}
	var sinks []*atomic.Int64
	for range targets {
		n := newNode(t)
		all = append(all, n)
		sinks = append(sinks, n.sink())
	}
	conf := testConfig()
	conf.limits.Bandwidth = mbit
	v := newTestServer(t, conf, state(all...))
	var floods []io.Writer // all circuits are there before anything flows: a handshake beside a flood is not what is tested
	for range hosts {
		h := newNodeWithKey(t, greedy.Peerstore().PrivKey(greedy.ID()))
		for _, to := range all[3:] {
			floods = append(floods, mustDial(t, v, h, to))
		}
	}
	got := far.sink()
	s := mustDial(t, v, from, far)
	for _, f := range floods {
		go pour(f)
	}
	for _, k := range sinks {
		flooder -= k.Load()
	}
	go pour(s)
	fair.Eventually(t, deadline, "a member sends beside one who floods", fair.True(func() bool { return got.Load() >= bytes }))
	for _, k := range sinks {
		flooder += k.Load()
	}
	return flooder, got.Load()
}

// A member who floods leaves another one its share of the relay's bandwidth. The control: a relay that divides nothing gives
// it several times as much. What the other one cannot take on a busy machine goes to the flooder, so the difference is
// judged where the flooder had more; who has which share is TestShares' matter. A machine that is busy enough shares fairly
// by itself, so that nothing is left for the relay to divide.
func TestBandwidthIsShared(t *testing.T) {
	const bytes = 12 << 20
	flooder, modest := floodBeside(t, 100, bytes)
	t.Logf("divided: the flooder had %d KiB, the other %d KiB", flooder>>10, modest>>10)
	free, other := floodBeside(t, 0, bytes)
	t.Logf("not divided: the flooder had %d KiB, the other %d KiB", free>>10, other>>10)
	if 4*flooder > 5*modest && flooder*other*3 > free*modest {
		t.Error("the relay's division leaves the flooder more than a third of its advantage")
	}
}
