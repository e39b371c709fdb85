package peers

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"edgemesh/tunnel/p2p/path/paths"
)

// A punch moves a peer's path four times in a second: that is one line. So is a loss, with or without another path.
func TestOneLine(t *testing.T) {
	relayed, quic, tcp, none := paths.Path{Kind: paths.KindRelayed, Transport: "relay/tcp"}, paths.Path{Kind: paths.KindPunched, Transport: "quic"},
		paths.Path{Kind: paths.KindPunched, Transport: "tcp"}, paths.Path{Kind: paths.KindNone}
	type step struct {
		kind EventKind
		to   paths.Path
	}
	for name, c := range map[string]struct {
		before paths.Path
		steps  []step
		want   string
	}{
		"punched": {relayed, []step{{PathChanged, quic}, {PathChanged, tcp}, {PathChanged, quic}, {PathChanged, tcp}},
			`level=INFO msg="path changed" peer=edge-2 path=punched transport=tcp before=relayed lost=false`},
		"replaced": {quic, []step{{PathLost, none}, {PathChanged, relayed}},
			`level=INFO msg="path changed" peer=edge-2 path=relayed transport=relay/tcp before=punched lost=true`},
		"lost":   {quic, []step{{PathLost, none}}, `level=INFO msg="path lost" peer=edge-2 path=none transport="" before=punched lost=true`},
		"both":   {tcp, []step{{PathLost, quic}, {PathClosed, none}}, `level=INFO msg="path lost" peer=edge-2 path=none transport="" before=punched lost=true`},
		"idle":   {quic, []step{{PathClosed, none}}, ""},
		"as was": {quic, []step{{PathChanged, tcp}, {PathChanged, quic}}, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			d := newDispatcher(slog.New(slog.NewTextHandler(&out, nil)))
			heard := 0
			d.set(func(Event) { heard++ })
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { d.run(ctx); close(done) }()
			before := c.before
			for _, s := range c.steps {
				d.emit(Event{Peer: "p", Kind: s.kind, Path: s.to, before: before, name: "edge-2"})
				before = s.to
				time.Sleep(quiet / 4)
			}
			time.Sleep(2 * quiet)
			cancel()
			<-done
			_, got, _ := strings.Cut(strings.TrimSpace(out.String()), " ")
			if got != c.want || heard != len(c.steps) {
				t.Errorf("%s: %d events, log %q, want %q", name, heard, got, c.want)
			}
		})
	}
}

// What has not been logged yet when the agent ends is logged then.
func TestLastLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		d := newDispatcher(slog.New(slog.NewTextHandler(&out, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { d.run(ctx); close(done) }()
		d.emit(Event{Peer: "p", Kind: PathLost, Path: paths.Path{Kind: paths.KindRelayed}, before: paths.Path{Kind: paths.KindDirect}, name: "edge-2"})
		synctest.Wait()
		cancel()
		<-done
		if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "path=relayed") || !strings.Contains(got, "lost=true") {
			t.Errorf("log %q, want one line of the lost path", got)
		}
	})
}

// A path that never stays is a line every ten seconds, and keeps no other peer's line back.
func TestFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		d := newDispatcher(slog.New(slog.NewTextHandler(&out, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { d.run(ctx); close(done) }()
		direct, relayed := paths.Path{Kind: paths.KindDirect, Transport: "quic"}, paths.Path{Kind: paths.KindRelayed, Transport: "relay/tcp"}
		d.emit(Event{Peer: "q", Kind: PathChanged, Path: direct, before: relayed, name: "steady"})
		for range 150 { // a minute of a flap every 200 ms
			d.emit(Event{Peer: "p", Kind: PathLost, Path: relayed, before: direct, name: "unsteady"})
			time.Sleep(quiet / 5)
			d.emit(Event{Peer: "p", Kind: PathChanged, Path: direct, before: relayed, name: "unsteady"})
			time.Sleep(quiet / 5)
		}
		cancel()
		<-done
		if n := strings.Count(out.String(), "peer=unsteady"); n < 5 || n > 6 {
			t.Errorf("%d lines of a minute's flaps, want one every %v:\n%s", n, 10*quiet, out.String())
		}
		if first, _, _ := strings.Cut(out.String(), "\n"); !strings.Contains(first, "peer=steady") {
			t.Errorf("the steady peer's line was kept back: the first one is %q", first)
		}
	})
}
