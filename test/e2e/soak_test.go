package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// soakTime is how long the soak lasts, by EDGEMESH_SOAK or ten minutes.
func soakTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("EDGEMESH_SOAK")
	if text == "" {
		return 10 * time.Minute
	}
	d, err := time.ParseDuration(text)
	ok(t, err)
	return d
}

// soakSeed is what faults are drawn by, EDGEMESH_SOAK_SEED or another one every time.
func soakSeed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("EDGEMESH_SOAK_SEED")
	if text == "" {
		return uint64(time.Now().UnixNano())
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	ok(t, err)
	return seed
}

// soak is four nodes, a symmetric NAT among their sites, and two relays. Nodes 1 and 3 and relay 2 are never restarted: what
// they hold is watched.
type soak struct {
	lab    *lab.Lab
	rnd    *rand.Rand
	nodes  []*lab.Node
	pods   []*lab.Pod // one for each node
	guests []*lab.Pod // that come and go
	names  int        // given to guests so far
	moved  int
	faults map[string]int
}

const (
	// maxGuests is how many pods that come and go there are at most.
	maxGuests = 12
	// soakEvery is how often it is looked at what everything holds.
	soakEvery = 15 * time.Second
)

// TestSoak lets one thing after the other fail at random, while pods come and go. After each of them all pods reach each
// other again, and nothing that agents and relays hold grows with time.
func TestSoak(t *testing.T) {
	tier.Long(t)
	duration, seed := soakTime(t), soakSeed(t)
	t.Logf("%v, EDGEMESH_SOAK_SEED=%d", duration, seed)
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
	time.Sleep(20 * time.Second) // sleep: until every pair has what it can get
	held := holdings{start: time.Now()}
	var slowest time.Duration
	looked, said, count := time.Time{}, time.Now(), 0
	for end := time.Now().Add(duration); time.Now().Before(end) && !t.Failed(); count++ {
		what := s.fault(t)
		s.faults[what]++
		slowest = max(slowest, s.allAnswer(t, "after "+what))
		if time.Since(looked) >= soakEvery {
			looked = time.Now()
			held.look(t, s)
		}
		if time.Since(said) >= time.Minute {
			said = time.Now()
			t.Logf("%v: %d faults, back after %.1f s at most; %s", time.Since(held.start).Round(time.Second), count+1, slowest.Seconds(), held.last())
		}
		time.Sleep(time.Duration(s.rnd.IntN(3000)) * time.Millisecond) // sleep: another moment each time
	}
	t.Logf("faults %v; all pairs back after %.1f s at most", s.faults, slowest.Seconds())
	time.Sleep(20 * time.Second) // sleep: what happened is repaired
	s.allAnswer(t, "at the end")
	held.flat(t, duration)
}

// fault does something, undoes it after some seconds, and says what it was.
func (s *soak) fault(t *testing.T) string {
	t.Helper()
	i := s.rnd.IntN(len(s.lab.Sites))
	site := s.lab.Sites[i]
	n := s.nodes[1+2*s.rnd.IntN(2)] // to be killed
	r := s.lab.Relays[s.rnd.IntN(len(s.lab.Relays))]
	pause := func() { time.Sleep(time.Duration(500+s.rnd.IntN(5000)) * time.Millisecond) } // sleep: another moment each time
	switch s.rnd.IntN(12) {
	case 0:
		other := s.lab.Sites[(i+1+s.rnd.IntN(len(s.lab.Sites)-1))%len(s.lab.Sites)]
		undo, err := s.lab.Cut(site.WAN, other.WAN)
		ok(t, err)
		pause()
		ok(t, undo())
		return "cut"
	case 1:
		killed := s.lab.Relays[0]
		killed.Process.Kill()
		pause()
		ok(t, killed.Start())
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
		n := s.nodes[s.rnd.IntN(len(s.nodes))]
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
	case 7:
		s.memberAway(t, n, pause)
		return "member away"
	case 8, 9, 10:
		s.guest(t)
		return "pod"
	default:
		ok(t, site.Router.Script("ip link set wan0 down"))
		pause()
		ok(t, site.Router.Script(
			"ip link set wan0 up",
			"ip route replace default via "+lab.InternetAddr))
		return "router away"
	}
}

// guest has a pod come, which pods of other nodes reach, or the oldest one go.
func (s *soak) guest(t *testing.T) {
	t.Helper()
	ctx := within(t, 30*time.Second)
	if len(s.guests) == maxGuests || len(s.guests) > 0 && s.rnd.IntN(2) == 0 {
		ok(t, s.guests[0].Delete(ctx))
		s.guests = s.guests[1:]
		return
	}
	s.names++
	n := s.nodes[s.rnd.IntN(len(s.nodes))]
	p := pod(t, n, fmt.Sprintf("guest-%d", s.names))
	s.guests = append(s.guests, p)
	from := s.pods[s.rnd.IntN(len(s.pods))]
	ok(t, lab.Until(ctx, 50*time.Millisecond, func() error { return tryCurl(ctx, from.NS, p, p.IP4(), from.IP4(), time.Second) }))
}

// memberAway takes a node out of the membership for a while.
func (s *soak) memberAway(t *testing.T, n *lab.Node, pause func()) {
	t.Helper()
	all := s.lab.Cluster
	s.lab.Cluster = all.Without(n.Name)
	ok(t, s.lab.WriteMembership())
	pause()
	s.lab.Cluster = all
	ok(t, s.lab.WriteMembership())
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
