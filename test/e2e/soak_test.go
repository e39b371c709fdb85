package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"edgemesh/test/lab"
)

// soakTime is how long the soak lasts, by EDGEMESH_SOAK or ten minutes.
func soakTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("EDGEMESH_SOAK")
	if text == "" {
		slow(t)
		return 10 * time.Minute
	}
	d, err := time.ParseDuration(text)
	ok(t, err)
	return d
}

// soak is four nodes, a symmetric NAT among their sites, and two relays.
type soak struct {
	lab    *lab.Lab
	rnd    *rand.Rand
	nodes  []*lab.Node
	pods   []*lab.Pod
	moved  int
	faults map[string]int
}

// TestSoak lets one thing after the other fail at random. After each of them all
// pods reach each other again, and at the end no agent has grown.
func TestSoak(t *testing.T) {
	duration := soakTime(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := &soak{lab: newLab(t), rnd: rand.New(rand.NewPCG(seed, 0)), faults: map[string]int{}}
	relay(t, s.lab, "relay-1")
	relay(t, s.lab, "relay-2")
	for i, kind := range []lab.NAT{lab.EIM, lab.EIM, lab.Symmetric, public} {
		s.nodes = append(s.nodes, at(t, s.lab, fmt.Sprintf("edge-%d", i+1), kind))
	}
	startAll(t, s.lab)
	for _, n := range s.nodes {
		s.pods = append(s.pods, pod(t, n, "pod-of-"+n.Name))
	}
	s.allAnswer(t, "at the start")
	time.Sleep(20 * time.Second) // until every pair has what it can get
	before := s.sizes(t)
	var slowest time.Duration
	for end := time.Now().Add(duration); time.Now().Before(end) && !t.Failed(); {
		what := s.fault(t)
		s.faults[what]++
		slowest = max(slowest, s.allAnswer(t, "after "+what))
		time.Sleep(time.Duration(s.rnd.IntN(3000)) * time.Millisecond)
	}
	t.Logf("faults %v; all pairs back after %.1f s at most", s.faults, slowest.Seconds())
	time.Sleep(20 * time.Second)
	s.allAnswer(t, "at the end")
	for i, after := range s.sizes(t) {
		t.Logf("%s: %v before, %v after", s.nodes[i].Name, before[i], after)
		// A node restarted in the meantime is compared with its youth.
		if after.goroutines > before[i].goroutines*3/2+40 || after.rssMiB > before[i].rssMiB*3/2+40 ||
			after.fds > before[i].fds*3/2+20 {
			t.Errorf("%s has grown: %v before, %v after", s.nodes[i].Name, before[i], after)
		}
	}
}

// fault does something, undoes it after some seconds, and says what it was.
func (s *soak) fault(t *testing.T) string {
	t.Helper()
	i := s.rnd.IntN(len(s.lab.Sites))
	site := s.lab.Sites[i]
	n := s.nodes[s.rnd.IntN(len(s.nodes))]
	r := s.lab.Relays[s.rnd.IntN(len(s.lab.Relays))]
	pause := func() { time.Sleep(time.Duration(500+s.rnd.IntN(5000)) * time.Millisecond) }
	switch s.rnd.IntN(8) {
	case 0:
		other := s.lab.Sites[(i+1+s.rnd.IntN(len(s.lab.Sites)-1))%len(s.lab.Sites)]
		undo, err := s.lab.Cut(site.WAN, other.WAN)
		ok(t, err)
		pause()
		ok(t, undo())
		return "cut"
	case 1:
		r.Process.Kill()
		pause()
		ok(t, r.Start())
		return "relay killed"
	case 2:
		ok(t, r.Script("ip link set wan0 down"))
		pause()
		ok(t, r.Script("ip link set wan0 up", "ip route replace default via "+lab.InternetAddr))
		return "relay away"
	case 3:
		n.Agent.Kill()
		pause()
		ok(t, n.Start())
		return "agent killed"
	case 4:
		ok(t, syscall.Kill(n.Agent.PID(), syscall.SIGSTOP))
		pause()
		ok(t, syscall.Kill(n.Agent.PID(), syscall.SIGCONT))
		return "agent stopped"
	case 5:
		ok(t, site.Router.Script("conntrack -F"))
		return "connections forgotten"
	case 6:
		s.moved++
		b := site.WAN.As4()
		ok(t, site.SetWAN(netip.AddrFrom4([4]byte{b[0], b[1], b[2], byte(10 + s.moved%200)})))
		return "site moved"
	default:
		ok(t, site.Router.Script("ip link set wan0 down"))
		pause()
		ok(t, site.Router.Script(
			"ip link set wan0 up",
			"ip route replace default via "+lab.InternetAddr))
		return "router away"
	}
}

// allAnswer wants every pod to reach every other one, and says how long that took.
func (s *soak) allAnswer(t *testing.T, when string) time.Duration {
	t.Helper()
	start := time.Now()
	ctx := within(t, 30*time.Second)
	for _, from := range s.pods {
		for _, to := range s.pods {
			if from == to {
				continue
			}
			err := lab.Until(ctx, 50*time.Millisecond, func() error {
				return tryCurl(ctx, from.NS, to, to.IP4(), from.IP4(), time.Second)
			})
			if err != nil {
				st, _ := from.Node.Status(context.Background())
				t.Errorf("%s: %v; %+v", when, err, st.Peer(to.Node.Name))
				return time.Since(start)
			}
		}
	}
	return time.Since(start)
}

// size is what an agent holds.
type size struct{ goroutines, rssMiB, fds int }

func (s *soak) sizes(t *testing.T) []size {
	t.Helper()
	var out []size
	for _, n := range s.nodes {
		text, err := n.Run(t.Context(), "curl", "-sf", "http://"+n.Config.MetricsAddress+"/metrics")
		ok(t, err)
		out = append(out, size{
			goroutines: int(metric(t, text, "go_goroutines")),
			rssMiB:     int(metric(t, text, "process_resident_memory_bytes") / (1 << 20)),
			fds:        int(metric(t, text, "process_open_fds")),
		})
	}
	return out
}

// metric reads one number without labels.
func metric(t *testing.T, text, name string) float64 {
	t.Helper()
	for line := range strings.Lines(text) {
		if v, found := strings.CutPrefix(line, name+" "); found {
			f, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			ok(t, err)
			return f
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
