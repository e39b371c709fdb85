package host

import (
	"strings"
	"testing"
)

// TestFirstPlace: an engine takes the first place of each chain of table filter again and again, as kube-router does, and accepts
// everything there. What we drop is dropped all the same, and nobody rewrites the table because of it.
func TestFirstPlace(t *testing.T) {
	t.Parallel()
	l := newLab(t, "")
	first := func(command string) {
		for _, ipt := range []string{"iptables", "ip6tables"} {
			for _, hook := range []string{"INPUT", "FORWARD", "OUTPUT"} {
				run(t, strings.NewReplacer("IPT", ipt, "HOOK", hook).Replace(command))
			}
		}
	}
	first("IPT -N KUBE-ROUTER-HOOK\nIPT -A KUBE-ROUTER-HOOK -j ACCEPT\nIPT -I HOOK -j KUBE-ROUTER-HOOK")
	for round := range 5 {
		done := mustSet(t, l.host, dual())
		for _, d := range done {
			if !strings.Contains(d, "/INPUT to EDGEMESH-PROBES, behind `-j KUBE-ROUTER-INPUT`") {
				t.Errorf("round %d: Set did %q, want the place of what accepts alone", round, d)
			}
		}
		if len(done) != 2 {
			t.Errorf("round %d: %q", round, done)
		}
		first("IPT -D HOOK -j KUBE-ROUTER-HOOK\nIPT -I HOOK -j KUBE-ROUTER-HOOK")
	}
	wantUnchanged(t, l.host, dual()) // left to the other
	pod, lan := l.listen(l.podA, podA4, serverPort), l.listen(l.lan, lanHost4, serverPort)
	l.dropped("iptables-save", "EDGEMESH-FORWARD", func() {
		if err := send(lan, "LAN to pod", podA4, serverPort); err != nil {
			t.Fatal(err)
		}
	})
	l.nothing(pod, "a LAN host routes to a pod")
}
