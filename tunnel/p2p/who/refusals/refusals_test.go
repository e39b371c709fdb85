package refusals

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

// The log has one line per peer and minute, with peer, node, address and reason; everything is counted.
func TestOneLinePerPeer(t *testing.T) {
	var log bytes.Buffer
	b := New(slog.New(slog.NewTextHandler(&log, nil)), func(p peer.ID) string { return map[peer.ID]string{"b": "edge-1"}[p] })
	for range 100 {
		b.Refuse(Stranger, "a", "/ip4/5.5.5.5/tcp/1")
		b.Refuse(PeerStreams, "b", "/ip4/5.5.5.6/tcp/1")
		b.Refuse(Handshakes, "", "5.5.5.7")
	}
	if n := strings.Count(log.String(), "\n"); n != 3 {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
	for _, want := range []string{"reason=stranger", "from=/ip4/5.5.5.5/tcp/1", "node=edge-1", `reason="peer streams"`, "from=5.5.5.7", "peer="} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, log.String())
		}
	}
	if c := b.Counts(); c[Stranger] != 100 || c[PeerStreams] != 100 || c[Handshakes] != 100 {
		t.Errorf("counted %v", c)
	}
}

// A node that the others do not know yet is refused for some seconds: no warning. One that stays unknown is warned of, once a
// minute, and so are ever new ones.
func TestNewcomer(t *testing.T) {
	var log bytes.Buffer
	b := New(slog.New(slog.NewTextHandler(&log, nil)), nil)
	now := time.Unix(1000, 0)
	b.now = func() time.Time { return now }
	for range 6 {
		b.Refuse(Stranger, "a", "/ip4/5.5.5.5/tcp/1")
		now = now.Add(newcomer / 6)
	}
	if s := log.String(); strings.Count(s, "level=INFO") != 1 || strings.Contains(s, "level=WARN") {
		t.Errorf("a newcomer's first %v:\n%s", newcomer, s)
	}
	for range 6 {
		b.Refuse(Stranger, "a", "/ip4/5.5.5.5/tcp/1")
		now = now.Add(time.Second)
	}
	if s := log.String(); strings.Count(s, "level=WARN") != 1 {
		t.Errorf("after it:\n%s", s)
	}
	now = now.Add(time.Minute)
	for i := range most {
		b.Refuse(Stranger, peer.ID(fmt.Sprint(i)), "5.5.5.6")
	}
	log.Reset()
	now = now.Add(time.Minute)
	b.Refuse(Stranger, "new", "5.5.5.6")
	if s := log.String(); !strings.Contains(s, "level=WARN") {
		t.Errorf("one of more than %d new ones:\n%s", most, s)
	}
	b.Refuse(Banned, "b", "5.5.5.7")
	if s := log.String(); strings.Count(s, "level=WARN") != 2 {
		t.Errorf("a banned peer is no newcomer:\n%s", s)
	}
}

// Who comes with ever new keys fills neither the log nor the memory, and the others stay visible.
func TestManyPeers(t *testing.T) {
	var log bytes.Buffer
	b := New(slog.New(slog.NewTextHandler(&log, nil)), nil)
	now := time.Unix(1000, 0)
	b.now = func() time.Time { return now }
	b.Refuse(Handshakes, "", "5.5.5.5")
	for i := range 10_000 {
		b.Refuse(Stranger, peer.ID(fmt.Sprint(i)), "5.5.5.5")
		now = now.Add(time.Millisecond)
	}
	if n := strings.Count(log.String(), "\n"); n != 1+maxLines {
		t.Errorf("%d lines within 10 s, want %d", n, 1+maxLines)
	}
	b.Refuse(Banned, "banned", "5.5.5.5")
	if !strings.Contains(log.String(), "reason="+Banned+" peer=") {
		t.Error("many strangers hide one that is banned")
	}
	if len(b.recent) > 2*most {
		t.Errorf("%d are remembered", len(b.recent))
	}
	log.Reset()
	now = now.Add(time.Minute)
	b.Refuse(Stranger, "another", "5.5.5.6")
	if want := fmt.Sprint("refusedSinceLastLine=", 10_000-maxLines); !strings.Contains(log.String(), want) {
		t.Errorf("the log lacks %s:\n%s", want, log.String())
	}
	if r := b.Recent(); len(r) == 0 || r[0].Peer != "another" || r[0].From != "5.5.5.6" || r[0].Count != 1 {
		t.Errorf("the latest is not first: %v", r)
	}
	now = now.Add(Kept)
	if r := b.Recent(); len(r) != 0 {
		t.Errorf("%d are remembered after %v", len(r), Kept)
	}
}

// Every reason has a meaning for the log.
func TestMeanings(t *testing.T) {
	for _, r := range []string{Stranger, Banned, Inside, Handshakes, Address, Key, Connections, PeerConns, PeerStreams, Memory,
		NoSecret, WrongSecret, BrokenProof, Unproved} {
		if meaning[r] == "" {
			t.Errorf("%q says nothing", r)
		}
	}
}
