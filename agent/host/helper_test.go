package host

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"edgemesh/agent/mesh"
)

// outside is the network namespace the tests were started in. No command of a
// test may run there.
func outside(t *testing.T) bool {
	t.Helper()
	here, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	// No test moves its parent process, or that of the tests.
	there, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", os.Getppid()))
	if err != nil {
		t.Fatal(err)
	}
	return here == there
}

// enter puts the test into a network namespace of its own, in which lo is up.
// It has no name and goes with the last thread or handle that holds it.
// Subtests run on other threads: each has to enter one of its own.
func enter(t *testing.T) netns.NsHandle {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: network namespaces need root")
	}
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Set(before); err != nil {
			t.Fatal(err) // the thread stays locked and dies with the test
		}
		before.Close()
		ns.Close()
		runtime.UnlockOSThread()
	})
	// Addresses that become valid later would make dumps differ.
	run(t, "ip link set lo up\nsysctl -qw net.ipv6.conf.all.accept_dad=0\nsysctl -qw net.ipv6.conf.default.accept_dad=0")
	return ns
}

// run executes commands, one a line, in the thread's namespace.
func run(t *testing.T, commands string) string {
	t.Helper()
	if outside(t) {
		t.Fatal("a command would run in the host's own network namespace; subtests have a thread of their own")
	}
	var all strings.Builder
	for line := range strings.Lines(commands) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		out, err := exec.Command(f[0], f[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.TrimSpace(line), err, out)
		}
		all.Write(out)
	}
	return all.String()
}

func newHost(t *testing.T) *Host {
	return New(Config{StateDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(testLog{t}, nil))})
}

type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

func plan(cidrs ...string) mesh.Host {
	w := mesh.Host{MTU: 1500}
	for i := 0; i < len(cidrs); i += 2 {
		w.Blocks = append(w.Blocks, netip.MustParsePrefix(cidrs[i]))
		w.ClusterCIDRs = append(w.ClusterCIDRs, netip.MustParsePrefix(cidrs[i+1]))
	}
	return w
}

func dual() mesh.Host {
	w := plan("10.244.1.0/24", "10.244.0.0/16", "fd00:1::/64", "fd00::/16")
	w.LAN = mesh.LAN{Native: true, VXLAN: true, ProbePort: 5211, VXLANPort: mesh.VXLANPort, MAC: mesh.VTEPAddr("self"), Bits: [2][]int{{24, 28}, {64}}}
	return w
}

// makeTUN makes the persistent TUN as the agent would have.
func makeTUN(t *testing.T) {
	t.Helper()
	run(t, "ip tuntap add dev "+TUNName+" mode tun\nip link set "+TUNName+" up")
}

func mustSet(t *testing.T, h *Host, w mesh.Host) []string {
	t.Helper()
	if outside(t) {
		t.Fatal("Set would run in the host's own network namespace")
	}
	done, err := h.set(context.Background(), w)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

func wantUnchanged(t *testing.T, h *Host, w mesh.Host) {
	t.Helper()
	if done := mustSet(t, h, w); len(done) > 0 {
		t.Fatalf("a second Set changed:\n%s", strings.Join(done, "\n"))
	}
}

func wantContains(t *testing.T, where, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s lacks %q:\n%s", where, p, text)
		}
	}
}

// found is everything on a host that Set may touch, as text.
func found(t *testing.T) string {
	t.Helper()
	var s strings.Builder
	s.WriteString(run(t, "ip rule\nip -6 rule\nip route show table all\nip -6 route show table all\nip -br link\nip -br addr"))
	for _, save := range []string{"iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save"} {
		rs := parseSave(run(t, save))
		for _, k := range rs.order {
			// Tables that are there, but empty, are as good as none.
			if len(rs.chains[k]) > 0 || rs.policy[k] != "ACCEPT" {
				fmt.Fprintln(&s, save, k, rs.policy[k], rs.chains[k])
			}
		}
	}
	for line := range strings.Lines(run(t, "sysctl -a --pattern ^net\\.ipv[46]\\.(ip_forward|conf)")) {
		// New interfaces of the kernel count on; the rest must be the same.
		if !strings.Contains(line, "stable_secret") {
			s.WriteString(line)
		}
	}
	lines := strings.Split(s.String(), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// settled is found, once the kernel has given the links their carrier and their
// link-local addresses, which it does in the background.
func settled(t *testing.T, links ...string) string {
	t.Helper()
	last := ""
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		now, ready := found(t), true
		for _, l := range links {
			ready = ready && strings.Contains(now, "multicast ff00::/8 dev "+l) && strings.Contains(now, "fe80::/64 dev "+l)
		}
		if ready && now == last {
			return now
		}
		last = now
	}
	t.Fatalf("the links do not settle:\n%s", last)
	return ""
}

// foundAs is found, once it is as wanted or the deadline is over: the kernel
// makes an IPv6 address's local route in the background.
func foundAs(t *testing.T, want string) string {
	t.Helper()
	for end := time.Now().Add(deadline); ; time.Sleep(10 * time.Millisecond) {
		if now := found(t); now == want || time.Now().After(end) {
			return now
		}
	}
}

// difference lists the lines only one of two texts has.
func difference(a, b string) string {
	var out strings.Builder
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for _, l := range as {
		if !slices.Contains(bs, l) {
			fmt.Fprintln(&out, "-", l)
		}
	}
	for _, l := range bs {
		if !slices.Contains(as, l) {
			fmt.Fprintln(&out, "+", l)
		}
	}
	return out.String()
}
