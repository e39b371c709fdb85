package peers_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"edgemesh/internal/cause"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/pathtest"
	"edgemesh/tunnel/p2p/path/peers"
	"edgemesh/tunnel/p2p/who/members"
)

// scene is a world with two relays and two nodes.
type scene struct {
	*testing.T
	w             *pathtest.World
	first, second *pathtest.Relay
	a, b          *pathtest.Node
}

// play runs f in a bubble, which fails the test if a goroutine is left.
func play(t *testing.T, f func(s *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{T: t, w: pathtest.New(t)}
		s.first, s.second = s.w.Relay(), s.w.Relay()
		nodes := s.w.Nodes("a", "b")
		s.a, s.b = nodes[0], nodes[1]
		defer s.w.Close()
		f(s)
	})
}

// stream opens a stream that has to be there in time.
func (s *scene) stream(from, to *pathtest.Node, most time.Duration) *pathtest.Flow {
	s.Helper()
	start := time.Now()
	f, err := from.Stream(s.Context(), to)
	if err != nil {
		s.Fatalf("%s to %s: %v", from.Name, to.Name, err)
	}
	if took := time.Since(start); took > most {
		s.Errorf("%s to %s: a stream after %v, want at most %v", from.Name, to.Name, took, most)
	}
	return f
}

// becomes waits for a kind of path, under traffic.
func (s *scene) becomes(want paths.Kind, most time.Duration) {
	s.Helper()
	for start := time.Now(); s.a.Path(s.b).Kind != want; {
		if time.Since(start) > most {
			st, _ := s.a.Table.StatusOf(s.b.ID)
			s.Fatalf("%s after %v, want %s; reason: %s", s.a.Path(s.b).Kind, most, want, st.Reason)
		}
		f, err := s.a.Stream(s.Context(), s.b)
		if err != nil {
			s.Fatal(err)
		}
		_, _ = f.Talk(200 * time.Millisecond)
		f.Reset()
	}
}

// replaced keeps a stream busy until it fails, and opens another one.
func (s *scene) replaced(f *pathtest.Flow, lost, opened time.Duration) *pathtest.Flow {
	s.Helper()
	took, err := f.Talk(time.Minute)
	if err == nil || took > lost {
		s.Errorf("the stream failed after %v with %v, want within %v", took, err, lost)
	}
	return s.stream(s.a, s.b, opened)
}

// The first stream takes a relay, immediately; then there is a direct path, and the node's owner is notified.
func TestRelayedThenDirect(t *testing.T) {
	play(t, func(s *scene) {
		f := s.stream(s.a, s.b, 200*time.Millisecond)
		if p := f.Path(); p.Kind != paths.KindRelayed || p.Relay != s.first.ID.String() {
			s.Errorf("%+v, want a path through the first relay", p)
		}
		s.becomes(paths.KindDirect, 3*time.Second)
		if p := s.b.Path(s.a); p.Kind != paths.KindDirect {
			s.Errorf("the other side is on %+v", p)
		}
		if !slices.ContainsFunc(s.a.Events(), func(e peers.Event) bool {
			return e.Kind == peers.PathChanged && e.Peer == s.b.ID && e.Path.Kind == paths.KindDirect
		}) {
			s.Error("the change was not reported")
		}
		if err := f.Ping(); err != nil {
			s.Errorf("the first stream did not survive: %v", err)
		}
		st, _ := s.a.Table.StatusOf(s.b.ID)
		if st.Reason != "" || st.Wanted || st.Path.RTT != 2*s.w.Latency {
			s.Errorf("%+v: want no reason, and a round trip of %v", st, 2*s.w.Latency)
		}
	})
}

// A lane's stream on a path that was heard just now, as of a peer never met before, does not wait for the peer's answer; on one that was
// quiet it does, since the path may have died unseen.
func TestLaneOfLivePathDoesNotWait(t *testing.T) {
	play(t, func(s *scene) {
		s.w.Block(true)
		s.stream(s.a, s.b, time.Second).Reset()
		open := func() time.Duration {
			start := time.Now()
			f, err := s.a.Table.OpenStream(s.Context(), s.b.ID, pathtest.Echo)
			if err != nil {
				s.Fatal(err)
			}
			defer f.Reset()
			return time.Since(start)
		}
		if took := open(); took > 0 {
			s.Errorf("a stream on a path that was heard just now took %v", took)
		}
		time.Sleep(10 * time.Second)
		if took := open(); took < 2*s.w.Latency {
			s.Errorf("a stream on a quiet path took %v, less than a round trip", took)
		}
	})
}

// A path is direct when one end is reached at an address of its own, or mapped for it, and punched when both are translated;
// the two sides agree. Only TCP's port is mapped here: at the other one the node is known by observation alone.
func TestDirectAndPunched(t *testing.T) {
	for name, c := range map[string]struct {
		translated, mapped []int
		tcp, quic          paths.Kind
	}{
		"own addresses":   {nil, nil, paths.KindDirect, paths.KindDirect},
		"one translated":  {[]int{0}, nil, paths.KindDirect, paths.KindDirect},
		"the other":       {[]int{1}, nil, paths.KindDirect, paths.KindDirect},
		"both translated": {[]int{0, 1}, nil, paths.KindPunched, paths.KindPunched},
		"one mapped":      {[]int{0, 1}, []int{0}, paths.KindDirect, paths.KindPunched},
		"the other one":   {[]int{0, 1}, []int{1}, paths.KindDirect, paths.KindPunched},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *scene) {
				nodes := []*pathtest.Node{s.a, s.b}
				for _, i := range c.translated {
					nodes[i].Translated.Store(true)
				}
				for _, i := range c.mapped {
					nodes[i].Mapped.Store(true)
				}
				s.stream(s.a, s.b, time.Second)
				s.becomes(c.tcp, 3*time.Second)
				for i, n := range nodes {
					st, _ := n.Table.StatusOf(nodes[1-i].ID)
					for _, p := range st.All {
						if want := map[string]paths.Kind{"tcp": c.tcp, "quic": c.quic, "relay/tcp": paths.KindRelayed}[p.Transport]; p.Kind != want {
							s.Errorf("%s has %s over %s, want %s", n.Name, p.Kind, p.Transport, want)
						}
					}
					if len(st.All) < 3 || (st.Reason == "") != (c.tcp == paths.KindDirect) {
						s.Errorf("%s: %d paths, reason %q", n.Name, len(st.All), st.Reason)
					}
				}
			})
		})
	}
}

// A direct path that falls silent is left for the relay; once direct dials get through again there is another one.
func TestSilentDirectPathIsReplaced(t *testing.T) {
	play(t, func(s *scene) {
		s.stream(s.a, s.b, time.Second)
		s.becomes(paths.KindDirect, 3*time.Second)
		f := s.stream(s.a, s.b, time.Second)
		s.w.Block(true)
		s.w.Silence()
		f = s.replaced(f, 2*time.Second, 200*time.Millisecond)
		if p := f.Path(); p.Kind != paths.KindRelayed {
			s.Errorf("the next stream took %+v", p)
		}
		if !slices.ContainsFunc(s.a.Events(), func(e peers.Event) bool { return e.Kind == peers.PathLost }) {
			s.Error("the loss was not reported")
		}
		st, _ := s.a.Table.StatusOf(s.b.ID)
		if !strings.Contains(st.Reason, "lost before: ") || !strings.Contains(st.Reason, "silent for 1.2") {
			s.Errorf("the reason is %q", st.Reason)
		}
		time.Sleep(10 * time.Second)
		s.w.Block(false)
		s.becomes(paths.KindDirect, time.Minute)
	})
}

// A direct path that ended at the peer alone, which noticed, is left immediately: the peer says so through the relay.
func TestEndedAtThePeer(t *testing.T) {
	play(t, func(s *scene) {
		s.stream(s.a, s.b, time.Second)
		s.becomes(paths.KindDirect, 3*time.Second)
		f := s.stream(s.a, s.b, time.Second)
		if _, err := f.Talk(time.Second); err != nil {
			s.Fatal(err)
		}
		s.w.Block(true)
		s.b.Cut()
		f = s.replaced(f, 300*time.Millisecond, 200*time.Millisecond)
		if p := f.Path(); p.Kind != paths.KindRelayed {
			s.Errorf("the next stream took %+v", p)
		}
	})
}

// A direct path that carries a packet every two seconds, without an answer, is left as fast as a busy one.
func TestSparsePathIsReplaced(t *testing.T) {
	play(t, func(s *scene) {
		s.stream(s.a, s.b, time.Second).Reset()
		s.becomes(paths.KindDirect, 5*time.Second)
		f, err := s.a.Table.OpenStream(s.Context(), s.b.ID, pathtest.Sink)
		if err != nil {
			s.Fatal(err)
		}
		packet := func() {
			if _, err := f.Write([]byte("packet")); err != nil {
				s.Error(err)
			}
		}
		for range 10 {
			time.Sleep(2 * time.Second)
			packet()
		}
		time.Sleep(200 * time.Millisecond)
		s.w.Silence()
		start := time.Now()
		for i := 0; !f.Lost() && i < 1000; i++ {
			time.Sleep(10 * time.Millisecond)
			if i == 180 {
				packet()
			}
		}
		if took := time.Since(start); took > 1300*time.Millisecond {
			s.Errorf("the path was left after %v", took)
		}
	})
}

// A stream on an idle path that died unseen finds that out, long before the next probe of that path is due.
func TestDeadIdlePathIsLeft(t *testing.T) {
	play(t, func(s *scene) {
		s.stream(s.a, s.b, time.Second)
		s.becomes(paths.KindDirect, 3*time.Second)
		time.Sleep(20 * time.Second)
		s.w.Block(true)
		s.w.Silence()
		time.Sleep(10 * time.Second)
		if p := s.a.Path(s.b); p.Kind != paths.KindDirect {
			s.Fatalf("%+v: the path was probed while nobody used it", p)
		}
		f := s.stream(s.a, s.b, 2*time.Second)
		if p := f.Path(); p.Kind != paths.KindRelayed {
			s.Errorf("the stream took %+v", p)
		}
	})
}

// One of two relays hangs: its circuits are left for the other one.
func TestHungRelayIsLeft(t *testing.T) {
	play(t, func(s *scene) {
		s.w.Block(true)
		f := s.stream(s.a, s.b, time.Second)
		_, _ = f.Talk(time.Second)
		s.first.Set(pathtest.Hung)
		f = s.replaced(f, 2*time.Second, 500*time.Millisecond)
		if p := f.Path(); p.Relay != s.second.ID.String() {
			s.Errorf("the next stream took %+v", p)
		}
	})
}

// A first packet does not wait for a relay that hangs.
func TestFirstPacketPassesHungRelay(t *testing.T) {
	play(t, func(s *scene) {
		s.w.Block(true)
		s.first.Set(pathtest.Hung)
		f := s.stream(s.a, s.b, 400*time.Millisecond)
		if p := f.Path(); p.Relay != s.second.ID.String() {
			s.Errorf("the stream took %+v", p)
		}
	})
}

// Without any relay a stream fails with the causes, and those that wait fail together; nothing is dialed after that. Once a
// relay is there the next stream is open immediately.
func TestUnreachable(t *testing.T) {
	play(t, func(s *scene) {
		s.first.Set(pathtest.Down)
		s.second.Set(pathtest.Down)
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if _, err := s.a.Stream(s.Context(), s.b); !errors.Is(err, peers.ErrUnreachable) || !strings.Contains(err.Error(), "is not connected") {
					s.Errorf("%v", err)
				}
			})
		}
		wg.Wait()
		st, _ := s.a.Table.StatusOf(s.b.ID)
		if st.Rounds != 1 || !st.Wanted || !strings.Contains(st.Reason, "is not connected") {
			s.Errorf("%+v after five streams failed", st)
		}
		before := s.a.Dials.Load()
		time.Sleep(time.Hour)
		if n := s.a.Dials.Load() - before; n > 0 {
			s.Errorf("%d dials although nobody waits", n)
		}
		s.second.Set(pathtest.Up)
		s.stream(s.a, s.b, time.Second)
		if st, _ := s.a.Table.StatusOf(s.b.ID); st.Wanted {
			s.Error("a peer that is reached still counts as wanted")
		}
	})
}

// A peer that loses its power while packets go to it counts as silent within 5 s, with the time it was last heard; as absent once relays
// have noticed, whether packets still wait or not, and so for ten minutes. When it is back that ends without a packet.
func TestSilentPeer(t *testing.T) {
	for name, direct := range map[string]bool{"through a relay": false, "direct": true} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *scene) {
				s.w.Block(!direct)
				f := s.stream(s.a, s.b, time.Second)
				if direct {
					s.becomes(paths.KindDirect, 3*time.Second)
					f = s.stream(s.a, s.b, time.Second)
				}
				_, _ = f.Talk(time.Second)
				s.b.Power(false)
				off := time.Now()
				_, _ = f.Write([]byte("heartbeat"))
				until := func(what string, most time.Duration, done func(peers.Status) bool) {
					s.Helper()
					for {
						st, _ := s.a.Table.StatusOf(s.b.ID)
						if done(st) {
							return
						}
						if took := time.Since(off); took > most {
							s.Fatalf("not %s after %v: %+v", what, took, st)
						}
						time.Sleep(100 * time.Millisecond)
					}
				}
				until("silent", 5*time.Second, func(st peers.Status) bool {
					return st.Silent && st.Wanted && off.Sub(st.Heard).Abs() < time.Second
				})
				time.Sleep(time.Until(off.Add(30 * time.Second)))
				if st, _ := s.a.Table.StatusOf(s.b.ID); !st.Silent || !st.Offline.IsZero() || st.Cause != cause.NoAnswer {
					s.Errorf("while relays still have it: %+v", st)
				}
				s.b.Forget()
				until("absent", 40*time.Second, func(st peers.Status) bool { return st.Silent && !st.Offline.IsZero() && st.Cause == cause.Absent })
				time.Sleep(time.Until(off.Add(9 * time.Minute)))
				if st, _ := s.a.Table.StatusOf(s.b.ID); !st.Wanted || st.Offline.IsZero() {
					s.Errorf("nine minutes later: %+v", st)
				}
				asked := s.a.Dials.Load()
				time.Sleep(2 * time.Hour)
				if st, _ := s.a.Table.StatusOf(s.b.ID); st.Wanted || st.Silent || s.a.Dials.Load() > asked+8 {
					s.Errorf("hours later, %d dials: %+v", s.a.Dials.Load()-asked, st)
				}
				s.b.Power(true)
				s.stream(s.a, s.b, time.Second)
				if st, _ := s.a.Table.StatusOf(s.b.ID); st.Wanted || st.Silent || st.Cause != (cause.Cause{}) {
					s.Errorf("back: %+v", st)
				}
			})
		})
	}
}

// A peer that is refused while it is in use is not waited for, and no relay is asked for it.
func TestRefusedIsNotSilent(t *testing.T) {
	play(t, func(s *scene) {
		f := s.stream(s.a, s.b, time.Second)
		_, _ = f.Talk(time.Second)
		s.a.Gater.Quarantine(s.b.ID, time.Hour, "a test")
		s.a.Table.Refuse(s.b.ID)
		dials := s.a.Dials.Load()
		time.Sleep(5 * time.Minute)
		if st, _ := s.a.Table.StatusOf(s.b.ID); st.Silent || st.Wanted || st.Cause != cause.Quarantined || s.a.Dials.Load() != dials {
			s.Errorf("%+v, %d dials", st, s.a.Dials.Load()-dials)
		}
	})
}

// A peer that is back is found without a packet.
func TestSilentPeerIsBack(t *testing.T) {
	play(t, func(s *scene) {
		s.w.Block(true)
		s.stream(s.a, s.b, time.Second).Reset()
		s.b.Power(false)
		s.b.Forget()
		_, _ = s.a.Stream(s.Context(), s.b)
		time.Sleep(time.Minute)
		if st, _ := s.a.Table.StatusOf(s.b.ID); !st.Silent {
			s.Fatalf("%+v", st)
		}
		s.b.Power(true)
		time.Sleep(26 * time.Second)
		if st, _ := s.a.Table.StatusOf(s.b.ID); st.Silent || st.Wanted || st.Path.Kind != paths.KindRelayed {
			s.Errorf("20 s later: %+v", st)
		}
	})
}

// A caller that gives up gets its own error, and the others get their stream.
func TestAbandonedStream(t *testing.T) {
	play(t, func(s *scene) {
		s.first.Set(pathtest.Hung)
		s.second.Set(pathtest.Hung)
		ctx, cancel := context.WithTimeout(s.Context(), 50*time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := s.a.Stream(ctx, s.b); !errors.Is(err, context.DeadlineExceeded) {
				s.Errorf("%v", err)
			}
		})
		wg.Go(func() {
			time.Sleep(100 * time.Millisecond)
			s.first.Set(pathtest.Up)
			s.second.Set(pathtest.Up)
		})
		s.stream(s.a, s.b, 5*time.Second)
		wg.Wait()
	})
}

// A caller that gives up before its round begins has nobody dialed.
func TestAbandonedBeforeTheRound(t *testing.T) {
	play(t, func(s *scene) {
		s.first.Set(pathtest.Down)
		s.second.Set(pathtest.Down)
		if _, err := s.a.Stream(s.Context(), s.b); !errors.Is(err, peers.ErrUnreachable) {
			s.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(s.Context(), 5*time.Millisecond) // the next round is some 50 ms away
		defer cancel()
		if _, err := s.a.Stream(ctx, s.b); !errors.Is(err, context.DeadlineExceeded) {
			s.Errorf("%v", err)
		}
		time.Sleep(time.Minute)
		if st, _ := s.a.Table.StatusOf(s.b.ID); st.Rounds != 1 {
			s.Errorf("%d rounds, want 1", st.Rounds)
		}
	})
}

// Where no direct dial gets through, attempts follow each other in growing pauses, and the status says so; once one gets
// through there is a direct path within a minute.
func TestPunchFails(t *testing.T) {
	play(t, func(s *scene) {
		s.w.Block(true)
		f := s.stream(s.a, s.b, time.Second)
		begun := s.a.Dials.Load() + s.b.Dials.Load()
		if _, err := f.Talk(20 * time.Second); err != nil {
			s.Fatal(err)
		}
		early := s.a.Dials.Load() + s.b.Dials.Load() - begun
		if _, err := f.Talk(100 * time.Second); err != nil {
			s.Fatal(err)
		}
		late := (s.a.Dials.Load() + s.b.Dials.Load() - begun - early) / 5
		if early == 0 || late >= early {
			s.Errorf("%d dials in the first 20 s, %d per 20 s later", early, late)
		}
		st, _ := s.a.Table.StatusOf(s.b.ID)
		if st.Punch == nil || st.Punch.Failed < 3 || !strings.Contains(st.Reason, "attempts failed") {
			s.Errorf("%+v, reason %q", st.Punch, st.Reason)
		}
		s.w.Block(false)
		s.becomes(paths.KindDirect, time.Minute)
	})
}

// A peer that nobody uses is disconnected after some minutes, or when the owner of the streams says so; the next stream connects.
func TestDisconnect(t *testing.T) {
	play(t, func(s *scene) {
		for name, end := range map[string]func(){
			"idle":     func() { time.Sleep(10 * time.Minute) },
			"asked":    func() { time.Sleep(4 * time.Second); s.a.Table.Disconnect(s.b.ID); time.Sleep(time.Second) },
			"the peer": func() { time.Sleep(4 * time.Second); s.b.Table.Disconnect(s.a.ID); time.Sleep(time.Second) },
		} {
			s.stream(s.a, s.b, time.Second).Reset()
			end()
			if n := s.w.Live(true) + s.w.Live(false); n > 0 || s.a.Path(s.b).Kind != paths.KindNone || s.b.Path(s.a).Kind != paths.KindNone {
				s.Errorf("%s: %d connections are left, %+v", name, n, s.a.Path(s.b))
			}
			for _, n := range []*pathtest.Node{s.a, s.b} {
				closed := 0
				for _, e := range n.Events() {
					switch e.Kind {
					case peers.PathLost:
						s.Errorf("%s: %s lost a path that nothing used", name, n.Name)
					case peers.PathClosed:
						closed++
					default:
					}
				}
				if closed == 0 {
					s.Errorf("%s: %s did not report the end of its path", name, n.Name)
				}
			}
		}
		f := s.stream(s.a, s.b, time.Second)
		_, _ = f.Talk(time.Second)
		s.a.Table.Disconnect(s.b.ID) // it is in use
		if _, err := f.Talk(time.Second); err != nil {
			s.Errorf("a peer in use was disconnected: %v", err)
		}
	})
}

// A peer that is no longer a member, or in quarantine, is cut off, and pending streams fail; later it is reached again.
func TestReadmission(t *testing.T) {
	play(t, func(s *scene) {
		f := s.stream(s.a, s.b, time.Second)
		s.a.Use(s.a)
		if took, err := f.Talk(time.Minute); err == nil || took > time.Second {
			s.Errorf("the stream of a removed member ended after %v: %v", took, err)
		}
		if _, err := s.a.Stream(s.Context(), s.b); !errors.Is(err, members.ErrNotMember) {
			s.Errorf("%v", err)
		}
		if n := s.w.Live(true) + s.w.Live(false); n > 0 {
			s.Errorf("%d connections to a removed member", n)
		}
		s.a.Use(s.a, s.b)
		s.stream(s.a, s.b, time.Second)

		s.a.Gater.Quarantine(s.b.ID, time.Minute, "it floods")
		s.a.Table.Refuse(s.b.ID)
		if _, err := s.a.Stream(s.Context(), s.b); !errors.Is(err, members.ErrQuarantined) {
			s.Errorf("%v", err)
		}
		time.Sleep(time.Minute)
		s.stream(s.a, s.b, time.Second)
	})
}

// A membership that ends while a stream waits for a path ends the wait.
func TestRefusedWhilePending(t *testing.T) {
	play(t, func(s *scene) {
		s.first.Set(pathtest.Hung)
		s.second.Set(pathtest.Hung)
		time.AfterFunc(300*time.Millisecond, func() { s.a.Use(s.a) })
		start := time.Now()
		if _, err := s.a.Stream(s.Context(), s.b); !errors.Is(err, members.ErrNotMember) || time.Since(start) != 300*time.Millisecond {
			s.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// Both sides open many streams at the same time: all of them work, and what is made twice is closed.
func TestSimultaneousOpens(t *testing.T) {
	play(t, func(s *scene) {
		var wg sync.WaitGroup
		for range 20 {
			for _, x := range [][2]*pathtest.Node{{s.a, s.b}, {s.b, s.a}} {
				wg.Go(func() {
					f := s.stream(x[0], x[1], time.Second)
					if _, err := f.Talk(5 * time.Second); err != nil {
						s.Errorf("%s to %s: %v", x[0].Name, x[1].Name, err)
					}
					f.Reset()
				})
			}
		}
		wg.Wait()
		time.Sleep(30 * time.Second) // the second direct path goes, too
		if relayed, direct := s.w.Live(true), s.w.Live(false); relayed != 1 || direct != 1 {
			s.Errorf("%d relayed and %d direct connections are left", relayed, direct)
		}
		if p, q := s.a.Path(s.b), s.b.Path(s.a); p.Kind != paths.KindDirect || p.Transport != q.Transport {
			s.Errorf("%+v and %+v", p, q)
		}
	})
}

// The pauses after failed attempts do not outlast a change of addresses.
func TestAddressChangeEndsPauses(t *testing.T) {
	play(t, func(s *scene) {
		s.w.Block(true)
		f := s.stream(s.a, s.b, time.Second)
		if _, err := f.Talk(2 * time.Minute); err != nil {
			s.Fatal(err)
		}
		s.w.Block(false)
		s.b.Table.NetChanged()
		s.a.Table.NetChanged()
		s.becomes(paths.KindDirect, 2*time.Second)
	})
}

// A node whose address changes is reached again in seconds, and directly within a minute.
func TestAddressChange(t *testing.T) {
	play(t, func(s *scene) {
		s.stream(s.a, s.b, time.Second)
		s.becomes(paths.KindDirect, 3*time.Second)
		f := s.stream(s.a, s.b, time.Second)
		to := netip.MustParseAddr("203.0.113.7")
		s.b.Move(to)
		start := time.Now()
		s.replaced(f, 2*time.Second, time.Second).Reset()
		s.becomes(paths.KindDirect, time.Minute)
		s.Logf("direct again after %v", time.Since(start))
		s.becomes(paths.KindDirect, time.Minute)
		if at := s.a.Path(s.b).Addr; !strings.Contains(at, to.String()) {
			s.Errorf("the path leads to %s, want %s", at, to)
		}
	})
}

// Nodes without an IP version in common stay relayed and say so, without any dial, until one of them gets another address.
func TestNoVersionInCommon(t *testing.T) {
	play(t, func(s *scene) {
		s.b.Move(netip.MustParseAddr("2001:db8::2"))
		f := s.stream(s.a, s.b, time.Second)
		before := s.a.Dials.Load() + s.b.Dials.Load()
		if _, err := f.Talk(time.Minute); err != nil {
			s.Fatal(err)
		}
		for _, n := range []*pathtest.Node{s.a, s.b} {
			other := s.b
			if n == s.b {
				other = s.a
			}
			st, _ := n.Table.StatusOf(other.ID)
			if st.Path.Kind != paths.KindRelayed || !strings.Contains(st.Reason, "no IP version in common: IPv") || strings.Contains(st.Reason, "NAT") ||
				st.Punch == nil || st.Punch.Await != peers.AwaitUplink || len(st.Punch.Dials) > 0 {
				s.Errorf("%s: %s because %q, %+v", n.Name, st.Path.Kind, st.Reason, st.Punch)
			}
		}
		if n := s.a.Dials.Load() + s.b.Dials.Load() - before; n > 0 {
			s.Errorf("%d dials", n)
		}
		f.Reset()
		s.b.Move(netip.MustParseAddr("198.51.100.7"))
		time.Sleep(time.Second) // a path that was heard just now is taken to be alive
		s.becomes(paths.KindDirect, 10*time.Second)
	})
}
