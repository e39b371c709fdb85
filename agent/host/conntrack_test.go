package host

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"edgemesh/agent/host/sysctl"
	"edgemesh/test/tier"
)

func TestConntrackIsNearlyFull(t *testing.T) {
	for _, c := range []struct {
		entries, most uint64
		want          bool
	}{{0, 262144, false}, {240000, 262144, false}, {250000, 262144, true}, {262144, 262144, true}, {100, 150, false}, {143, 150, true}, {7, 0, false}} {
		if f := conntrack(c.entries, c.most); len(f) > 0 != c.want {
			t.Errorf("%d of %d: %+v", c.entries, c.most, f)
		}
	}
	enter(t)
	makeTUN(t)
	mustSet(t, newHost(t), dual())
	if text, err := sysctl.Read("net/netfilter/nf_conntrack_max"); err != nil || text == "0" {
		t.Fatalf("this kernel has other keys: %q, %v", text, err)
	}
	if f := Conntrack(); len(f) > 0 {
		t.Errorf("an empty table: %+v", f)
	}
}

// TestConntrackFull fills a namespace's table with connections that the kernel may not drop early, as many as this machine's own may
// have: a namespace has no nf_conntrack_max of its own. The finding says so; connections that are there continue, new ones are dropped, which
// is the kernel's doing, and pass once there is room, without the finding.
func TestConntrackFull(t *testing.T) {
	tier.Long(t)
	l := newLab(t, "")
	most, err := sysctl.Read("net/netfilter/nf_conntrack_max")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	n, err := strconv.Atoi(most)
	must(err)
	if n > 1<<19 {
		t.Skipf("NOT RUN: nf_conntrack_max is %d here, too many entries to make; it is the same for all network namespaces", n)
	}
	pod, lan := l.listen(l.podA, podA4, 0), l.listen(l.lan, lanHost4, serverPort)
	must(send(pod, "before", lanHost4, serverPort))
	from := l.receive(lan, "before")
	must(send(lan, "answer", from.Addr().String(), int(from.Port()))) // it is assured from now on
	l.receive(pod, "answer")
	must(send(pod, "again", lanHost4, serverPort))
	l.receive(lan, "again")
	if f := Conntrack(); len(f) > 0 {
		t.Errorf("a table with room: %+v", f)
	}
	var entries strings.Builder
	for i := range n {
		fmt.Fprintf(&entries, "-A -p udp -s 10.%d.%d.%d -d 192.0.2.2 --sport 1000 --dport 53 -t 600 -u SEEN_REPLY,ASSURED\n", i>>16, i>>8&255, i&255)
	}
	file := filepath.Join(t.TempDir(), "entries")
	must(os.WriteFile(file, []byte(entries.String()), 0o600))
	if out, err := exec.Command("conntrack", "-R", file).CombinedOutput(); err == nil { // "not enough memory"
		t.Fatalf("all of them fit: %s", out)
	}
	if f := Conntrack(); len(f) != 1 || !strings.Contains(f[0].Remedy, "nf_conntrack_max") || !strings.Contains(f[0].Text, "at most "+most) {
		t.Errorf("findings: %+v", f)
	}
	later := l.listen(l.podA, podA4, 0)
	_ = send(later, "new", lanHost4, serverPort)
	must(send(pod, "as before", lanHost4, serverPort))
	l.receive(lan, "as before")
	l.nothing(lan, "a new connection")
	run(t, "conntrack -F")
	if f := Conntrack(); len(f) > 0 {
		t.Errorf("with room again: %+v", f)
	}
	must(send(later, "new, with room", lanHost4, serverPort))
	l.receive(lan, "new, with room")
}
