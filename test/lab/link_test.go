package lab

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab/link"
)

// tryFor is how long a measurement may be repeated: this machine may be busy with
// other things, the link's own promises do not depend on that.
const tryFor = 60 * time.Second

func parseLink(t testing.TB, text string) link.Config {
	t.Helper()
	d, err := link.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return link.Both(d)
}

func insertLink(t testing.TB, l *Lab, n *NS, text string) *Link {
	t.Helper()
	k, err := l.InsertLink(t.Context(), n, parseLink(t, text), 7)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func linkStats(t testing.TB, k *Link) link.Stats {
	t.Helper()
	s, err := k.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestLink holds that a host behind a NAT router finds the link's delay, rate and
// loss between itself and the internet, that all of it changes while it runs, and
// that it can be taken out again.
func TestLink(t *testing.T) {
	l := newLab(t)
	server(t, l, "one", 1)
	s, err := l.AddSite("a", EIM)
	if err != nil {
		t.Fatal(err)
	}
	h, _, err := s.AddHost("h")
	if err != nil {
		t.Fatal(err)
	}
	const one = "5.5.9.1"
	if err := h.Ping(t.Context(), one, time.Second); err != nil {
		t.Fatal(err)
	}
	before, err := l.WAN.Run(t.Context(), "cat", "/sys/class/net/"+wanBridge+"/address")
	if err != nil {
		t.Fatal(err)
	}
	k := insertLink(t, l, s.Router, "rate=100M queue=50ms delay=25ms")
	ctx, cancel := context.WithTimeout(t.Context(), tryFor)
	defer cancel()

	t.Run("delay", func(t *testing.T) {
		err := Until(ctx, time.Millisecond, func() error {
			var g Gaps
			if err := h.Tool(ctx, &g, "gaps", "--proto", "icmp", "--duration", "1s", "--interval", "10ms",
				one); err != nil {
				return err
			}
			if g.P50Ms < 50 {
				t.Errorf("an answer after %g ms, the link alone needs 50", g.P50Ms)
			}
			if g.Lost != 0 || g.Reordered != 0 || g.P50Ms > 55 {
				return fmt.Errorf("50 ms link: %+v", g)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	t.Run("rate", func(t *testing.T) {
		// 1448 bytes of payload in a frame of 1514, headers of a TCP segment with
		// timestamps taken off.
		const most = 100 * 1448.0 / 1514
		err := Until(ctx, time.Millisecond, func() error {
			var b Bulk
			if err := h.Tool(ctx, &b, "bulk", "--duration", "3s", one); err != nil {
				return err
			}
			if b.Mbps > most {
				t.Errorf("%.1f Mbit/s through a link of at most %.1f", b.Mbps, most)
			}
			if b.Mbps < 0.8*most {
				return fmt.Errorf("%.1f Mbit/s through a link of %.1f; %+v", b.Mbps, most, linkStats(t, k).Up)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if up := linkStats(t, k).Up; up.OutBytes < 1400*up.Out*9/10 || up.QueuedMax > 625000 ||
			up.QueuedMax < 100*1514 {
			t.Errorf("bulk data should be full frames in a queue of 50 ms: %+v", up)
		}
	})
	t.Run("loss", func(t *testing.T) {
		const share = 0.1
		if err := k.Set(ctx, parseLink(t, "delay=2ms loss=10%")); err != nil {
			t.Fatal(err)
		}
		start := linkStats(t, k)
		var g Gaps
		if err := h.Tool(ctx, &g, "gaps", "--proto", "udp", "--duration", "4s", "--interval", "2ms", one); err != nil {
			t.Log(err) // what it lost is an error to it
		}
		end := linkStats(t, k)
		lost := end.Up.Loss - start.Up.Loss + end.Down.Loss - start.Down.Loss
		// Others may send now and then: neighbours, a late acknowledgement.
		if d := math.Abs(float64(lost) - float64(g.Lost)); d > 10 {
			t.Errorf("the flow lost %d, the link says %d", g.Lost, lost)
		}
		// Each is lost in one direction or the other; five deviations.
		p, n := 1-(1-share)*(1-share), float64(g.Sent)
		if d := math.Abs(float64(g.Lost) - n*p); g.Sent < 500 || d > 5*math.Sqrt(n*p*(1-p)) {
			t.Errorf("%d of %d lost, a share of %.2f expected", g.Lost, g.Sent, p)
		}
	})
	t.Run("hole", func(t *testing.T) {
		if err := k.Set(ctx, parseLink(t, "hole=1280")); err != nil {
			t.Fatal(err)
		}
		ping := func(size string) error {
			return h.Ping(ctx, one, time.Second, "-M", "do", "-s", size)
		}
		if err := ping("1252"); err != nil { // 28 bytes of headers
			t.Error(err)
		}
		if ping("1253") == nil {
			t.Error("1281 bytes came through")
		}
		if s := linkStats(t, k); s.Up.Hole != 1 || s.Down.Hole != 0 {
			t.Errorf("one packet into the hole: %+v", s)
		}
	})
	t.Run("refused", func(t *testing.T) {
		err := k.Set(ctx, link.Both(link.Direction{Loss: 2}))
		if err == nil || !strings.Contains(err.Error(), link.ErrConfig.Error()) {
			t.Errorf("a loss of 200 %%: %v", err)
		}
		if c, err := k.Config(ctx); err != nil || c != link.Both(link.Direction{Hole: 1280}) {
			t.Errorf("the link is now %+v, %v", c, err)
		}
	})
	t.Run("remove", func(t *testing.T) {
		if _, err := l.InsertLink(ctx, s.Router, link.Config{}, 1); err == nil {
			t.Error("a second link at the same port")
		}
		if err := k.Remove(); err != nil {
			t.Fatal(err)
		}
		if err := h.Ping(ctx, one, time.Second, "-M", "do", "-s", "1472"); err != nil {
			t.Error(err)
		}
		if !strings.Contains(k.Process.Tail(1), `"up":{"in":`) {
			t.Errorf("no counters at the end: %s", k.Process.Tail(3))
		}
		after, err := l.WAN.Run(ctx, "cat", "/sys/class/net/"+wanBridge+"/address")
		if err != nil || after != before {
			t.Errorf("the WAN's address went from %s to %s, %v", before, after, err)
		}
	})
}

// TestLinkOfLowestPort has the port that a link is put before be the one whose address a bridge would take.
func TestLinkOfLowestPort(t *testing.T) {
	l := newLab(t)
	s, err := l.AddSite("a", EIM)
	if err != nil {
		t.Fatal(err)
	}
	port, err := l.wanPort(t.Context(), s.Router)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.WAN.Script("ip link set " + port + " address 02:00:00:00:00:01"); err != nil {
		t.Fatal(err)
	}
	insertLink(t, l, s.Router, "delay=1ms")
	if err := s.Router.Ping(t.Context(), "2a05:5::1", 3*time.Second); err != nil {
		t.Error(err)
	}
}
