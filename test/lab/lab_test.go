package lab

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// buildPodtool builds podtool into a directory of the test.
func buildPodtool(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: ", ErrNotRoot)
	}
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-o", dir+"/podtool", "edgemesh/test/cmd/podtool")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build podtool: %v\n%s", err, out)
	}
	return dir
}

func newLab(t testing.TB) *Lab {
	t.Helper()
	l, err := New(Options{Bin: buildPodtool(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(l.Logs(20))
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// server puts a host with podtool's server on the WAN.
func server(t testing.TB, l *Lab, name string, y int) *NS {
	t.Helper()
	n, err := l.newNS(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.joinWAN(n, 9, y); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Serve(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestNATs holds that the routers behave as their kinds are named.
func TestNATs(t *testing.T) {
	l := newLab(t)
	outside := server(t, l, "one", 1)
	server(t, l, "two", 2)
	for _, tc := range []struct {
		kind     NAT
		samePort bool   // one mapping for all destinations
		silent   bool   // no answer to unsolicited packets
		open     bool   // ConePort reaches the first host
		name     string // of the site
	}{
		{kind: EIM, samePort: true, silent: true, name: "a"},
		{kind: EIMReject, samePort: true, name: "b"},
		{kind: Cone, samePort: true, open: true, name: "c"},
		{kind: Symmetric, silent: true, name: "d"},
	} {
		t.Run(string(tc.kind), func(t *testing.T) {
			s, err := l.AddSite("site-"+tc.name, tc.kind)
			if err != nil {
				t.Fatal(err)
			}
			h, addr, err := s.AddHost("host-" + tc.name)
			if err != nil {
				t.Fatal(err)
			}
			if addr != netip.MustParseAddr("192.168.1.11") {
				t.Errorf("first host has %s", addr)
			}
			seen := map[string]string{}
			if err := h.Tool(t.Context(), &seen, "mapped", "--from", "7777", "5.5.9.1", "5.5.9.2"); err != nil {
				t.Fatal(err)
			}
			one, two := netip.MustParseAddrPort(seen["5.5.9.1"]), netip.MustParseAddrPort(seen["5.5.9.2"])
			if one.Addr() != s.WAN || two.Addr() != s.WAN {
				t.Errorf("not translated to %s: %v", s.WAN, seen)
			}
			if same := one.Port() == 7777 && two.Port() == 7777; same != tc.samePort {
				t.Errorf("port 7777 became %d and %d", one.Port(), two.Port())
			}
			err = outside.Tool(t.Context(), nil, "udp", "--count", "1", "--timeout", "300ms", s.WAN.String())
			if err == nil {
				t.Error("an unasked datagram was answered by a host behind the NAT")
			} else if refused := strings.Contains(err.Error(), "refused"); refused == tc.silent {
				t.Errorf("unasked datagram: %v", err)
			}
			p, err := h.StartTool("cone-"+tc.name, "serve", "--name", "behind", "--port", "4001")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if err := Until(ctx, 10*time.Millisecond, func() error {
				return h.Tool(ctx, nil, "get", "http://127.0.0.1:4001/")
			}); err != nil {
				t.Fatal(err, p.Tail(5))
			}
			var r Reply
			err = outside.Tool(t.Context(), &r, "get", "--timeout", "500ms", "http://"+s.WAN.String()+":4001/")
			if tc.open && (err != nil || r.Name != "behind") {
				t.Errorf("forwarded port: %v %v", r, err)
			}
			if !tc.open && err == nil {
				t.Error("the port is open from outside")
			}
		})
	}
}

// TestBlock holds that Block and Cut cut two sites apart, and nothing else.
func TestBlock(t *testing.T) {
	l := newLab(t)
	a, err := l.AddSite("a", EIM)
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.AddSite("b", EIMReject)
	if err != nil {
		t.Fatal(err)
	}
	h, _, err := a.AddHost("h")
	if err != nil {
		t.Fatal(err)
	}
	ping := func(addr string) error { return h.Ping(t.Context(), addr, time.Second) }
	if err := ping(b.WAN.String()); err != nil {
		t.Fatal(err)
	}
	for name, apart := range map[string]func() (func() error, error){
		"Block": func() (func() error, error) { return a.Block(b) },
		"Cut":   func() (func() error, error) { return l.Cut(a.WAN, b.WAN) },
	} {
		undo, err := apart()
		if err != nil {
			t.Fatal(name, err)
		}
		if ping(b.WAN.String()) == nil {
			t.Errorf("%s: answered", name)
		}
		if err := ping(InternetAddr); err != nil {
			t.Error(name, err)
		}
		if err := undo(); err != nil {
			t.Fatal(name, err)
		}
		if err := ping(b.WAN.String()); err != nil {
			t.Error(name, err)
		}
	}
}

// TestLeaks holds that the leak counters see what a node lets out.
func TestLeaks(t *testing.T) {
	l := newLab(t)
	s, err := l.AddSite("a", EIM)
	if err != nil {
		t.Fatal(err)
	}
	h, _, err := s.AddHost("h")
	if err != nil {
		t.Fatal(err)
	}
	leaks, err := l.Leaks(t.Context())
	if err != nil || len(leaks) != 0 {
		t.Fatalf("before: %v %v", leaks, err)
	}
	_ = h.Ping(t.Context(), "10.244.9.9", time.Second) // nobody answers
	if leaks, err = l.Leaks(t.Context()); err != nil || leaks["a"] == 0 || leaks["wan"] == 0 {
		t.Errorf("after a packet to the cluster's range: %v %v", leaks, err)
	}
}

// TestSniff holds that the sniffers see what a node lets out in clear, of both IP versions, but not to the node that has the pod, nor what
// else it sends.
func TestSniff(t *testing.T) {
	l := newLab(t)
	s, err := l.AddSite("a", EIM)
	if err != nil {
		t.Fatal(err)
	}
	nodes := map[string]*Node{}
	for name, block := range map[string]string{"one": "10.244.1.0/24", "two": "10.244.2.0/24"} {
		n, err := s.AddNode(name, NodeOptions{NoAgent: true, PodCIDRs: []string{block}})
		if err != nil {
			t.Fatal(err)
		}
		nodes[name] = n
	}
	strays, err := l.Sniff()
	if err != nil {
		t.Fatal(err)
	}
	err = nodes["one"].Script("ip -6 route add default via fe80::1 dev eth0", "ip neigh add fe80::1 lladdr 02:00:00:00:00:01 dev eth0",
		"ip route add 10.244.2.0/24 via "+nodes["two"].Addr.String(),
		"for a in 10.244.9.9 fd44:44::9 10.244.2.9 192.168.1.1; do ping -c1 -W1 $a || true; done")
	if err != nil {
		t.Fatal(err)
	}
	all, err := strays()
	if text := strings.Join(all, "\n"); err != nil || len(all) != 2 || !strings.Contains(text, "one: to 10.244.9.9 at ") || !strings.Contains(text, "one: to fd44:44::9 at 02:00:00:00:00:01 over eth0") {
		t.Errorf("seen: %s %v", text, err)
	}
}

// TestTools holds that podtool reports what it should over a plain network.
func TestTools(t *testing.T) {
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
	r, err := h.Get(t.Context(), netip.MustParseAddr("5.5.9.1"), time.Second)
	if err != nil || r.Name != "one" || r.Client != s.WAN {
		t.Errorf("get: %+v %v", r, err)
	}
	for _, args := range [][]string{{"bulk", "--bytes", "30000001"}, {"bulk", "--pull", "--bytes", "30000001"}} {
		var b Bulk
		if err := h.Tool(t.Context(), &b, append(args, "5.5.9.1")...); err != nil || !b.Match ||
			b.Bytes != 30000001 || b.SHA256 == "" {
			t.Errorf("%v: %+v %v", args, b, err)
		}
	}
	var u Echoed
	if err := h.Tool(t.Context(), &u, "udp", "--size", "60000", "--count", "5", "5.5.9.1"); err != nil ||
		u.Received != 5 {
		t.Errorf("udp: %+v %v", u, err)
	}
	for _, proto := range []string{"icmp", "udp", "tcp"} {
		var g Gaps
		err := h.Tool(t.Context(), &g, "gaps", "--proto", proto, "--duration", "300ms", "--interval", "10ms", "5.5.9.1")
		if err != nil || g.Sent < 10 || g.Lost != 0 || g.Received != g.Sent {
			t.Errorf("gaps %s: %+v %v", proto, g, err)
		}
	}
}

// TestGone holds that a lab is removed with its processes when the process that
// made it is killed, and that Reap leaves a living lab alone.
func TestGone(t *testing.T) {
	bin := buildPodtool(t)
	if os.Getenv("LAB_TEST_HANG") != "" {
		l, err := New(Options{Bin: os.Getenv("LAB_TEST_HANG")})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.WAN.Serve(t.Context(), "internet"); err != nil {
			t.Fatal(err)
		}
		_, _ = os.Stdout.WriteString("tag " + l.Tag + "\n")
		select {}
	}
	child := exec.Command(os.Args[0], "-test.run=^TestGone$", "-test.v")
	child.Env = append(os.Environ(), "LAB_TEST_HANG="+bin)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var text string
	buf := make([]byte, 4096)
	for !strings.Contains(text, "tag ") || !strings.HasSuffix(text, "\n") {
		n, err := out.Read(buf)
		text += string(buf[:n])
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
	}
	_, tag, _ := strings.Cut(text, "tag ")
	tag = strings.TrimSpace(tag)
	namespaces := func() string {
		b, err := exec.Command("ip", "netns", "list").Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if !strings.Contains(namespaces(), tag+"-wan") {
		t.Fatalf("no namespace of %s", tag)
	}
	if gone, err := Reap(""); err != nil {
		t.Fatal(err)
	} else if strings.Contains(strings.Join(gone, " "), tag) {
		t.Errorf("reap removed a living lab: %v", gone)
	}
	if gone, err := Reap(tag); err == nil || len(gone) > 0 || !strings.Contains(namespaces(), tag+"-wan") {
		t.Errorf("reap by name removed a living lab: %v, %v", gone, err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // killed
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err = Until(ctx, 20*time.Millisecond, func() error {
		if _, err := os.Stat("/tmp/" + tag); err == nil {
			return os.ErrExist
		}
		if strings.Contains(namespaces(), tag+"-") {
			return os.ErrExist
		}
		return nil
	})
	if err != nil {
		t.Errorf("the lab of a killed process is still there: %v", err)
	}
}
