package iptables

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/nstest"
)

func TestBackendIsTheHosts(t *testing.T) {
	plain := modeNFT
	if b := Find(LookPath).modes(false); len(b) > 0 {
		plain = b[0].mode
	}
	for _, c := range []struct{ name, rules, want string }{
		{"nothing: plain iptables", "", plain},
		{"legacy rules", "iptables-legacy -A INPUT -i lo -j ACCEPT", modeLegacy},
		{"nft rules", "iptables-nft -A INPUT -i lo -j ACCEPT", modeNFT},
		{"IPv6 counts", "iptables-nft -A INPUT -i lo -j ACCEPT\nip6tables-legacy -A INPUT -i lo -j ACCEPT\nip6tables-legacy -A INPUT -i up0 -j ACCEPT", modeLegacy},
		{"more rules win", "iptables-legacy -A INPUT -i lo -j ACCEPT\niptables-legacy -A INPUT -i up0 -j ACCEPT\niptables-nft -A INPUT -i lo -j ACCEPT", modeLegacy},
		{"kubelet's hint wins", "iptables-legacy -A INPUT -i lo -j ACCEPT\niptables-nft -t mangle -N KUBE-IPTABLES-HINT", modeNFT},
		{"kubelet's canary wins", "iptables-nft -A INPUT -i lo -j ACCEPT\niptables-legacy -t mangle -N KUBE-KUBELET-CANARY", modeLegacy},
		{"ours do not count", "iptables-legacy -N EDGEMESH-X\niptables-legacy -A EDGEMESH-X -j DROP\niptables-legacy -I INPUT -j EDGEMESH-X\niptables-nft -A INPUT -i lo -j ACCEPT", modeNFT},
	} {
		t.Run(c.name, func(t *testing.T) {
			nstest.Enter(t)
			nstest.Run(t, c.rules)
			v4, v6, why, err := Find(LookPath).chooseBackends()
			if err != nil {
				t.Fatal(err)
			}
			if v4.mode != c.want || v6 == nil || v6.mode != c.want {
				t.Errorf("chose %+v and %+v (%s), want %s", v4, v6, why, c.want)
			}
		})
	}
}

// A program that never ends, and one whose child keeps its output open, are left after a while.
func TestProgramThatNeverEnds(t *testing.T) {
	for _, script := range []string{"exec sleep 60", "sleep 60 & echo done; wait"} {
		began := time.Now()
		if _, err := run(200*time.Millisecond, "", "sh", "-c", script); err == nil || !strings.Contains(err.Error(), "did not end within 200ms") {
			t.Errorf("%s: %v", script, err)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%s: left after %v", script, took)
		}
	}
	out, err := run(time.Minute, "rules", "sh", "-c", "cat; echo wrong >&2; exit 3")
	if out != "rules" || err == nil || err.Error() != "exit status 3: wrong" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestParseSave(t *testing.T) {
	rs := parseSave("# c\n*nat\n:POSTROUTING ACCEPT [1:2]\n:EDGEMESH-NAT - [0:0]\n-A POSTROUTING -j EDGEMESH-NAT\n-A EDGEMESH-NAT -s 10.0.0.0/8 -j MASQUERADE\nCOMMIT\n*filter\n:EDGEMESH-NAT - [0:0]\nCOMMIT\n")
	if got := rs.chains[key{"nat", "EDGEMESH-NAT"}]; len(got) != 1 || got[0] != "-s 10.0.0.0/8 -j MASQUERADE" {
		t.Errorf("rules are %q", got)
	}
	if got := rs.chains[key{"filter", "EDGEMESH-NAT"}]; len(got) != 0 {
		t.Errorf("rules of another table are %q", got)
	}
	if rs.policy[key{"nat", "POSTROUTING"}] != "ACCEPT" || rs.policy[key{"nat", "EDGEMESH-NAT"}] != "-" {
		t.Errorf("policies are %v", rs.policy)
	}
}

// Between a look at the rules and a change, other programs delete and insert theirs: they lose none by it.
func TestOthersRulesMoveMeanwhile(t *testing.T) {
	for _, mode := range []string{modeNFT, modeLegacy} {
		for _, what := range []string{"place", "remove"} {
			for _, meanwhile := range []string{"-D FORWARD -j OTHER", "-I FORWARD -s 10.0.0.1 -j ACCEPT", "-A FORWARD -s 10.0.0.1 -j ACCEPT"} {
				t.Run(mode+" "+what+" "+meanwhile[:2], func(t *testing.T) {
					nstest.Enter(t)
					b := Find(LookPath).mode(false, mode)
					if b == nil {
						t.Skip("NOT RUN: no iptables-" + mode)
					}
					if err := b.load(); err != nil {
						t.Fatal(err)
					}
					ipt := b.path + " -w "
					run := func(commands ...string) {
						t.Helper()
						if out, err := exec.Command("sh", "-ec", ipt+strings.Join(commands, "\n"+ipt)).CombinedOutput(); err != nil {
							t.Fatalf("%v: %s", err, out)
						}
					}
					run("-N OTHER", "-N EDGEMESH-X", "-A FORWARD -j OTHER", "-A FORWARD -s 10.0.0.2 -j DROP",
						`-A FORWARD -m comment --comment "two words" -j EDGEMESH-X`, "-A FORWARD -j EDGEMESH-X", "-A FORWARD -s 10.0.0.3 -j DROP")
					have, err := b.save()
					if err != nil {
						t.Fatal(err)
					}
					run(meanwhile)
					hook := key{"filter", "FORWARD"}
					others := func() []string {
						now, err := b.save()
						if err != nil {
							t.Fatal(err)
						}
						return slices.DeleteFunc(now.chains[hook], func(rule string) bool { return jumpsTo(rule, "EDGEMESH-X") })
					}
					want := others()
					c := chain{table: "filter", name: "EDGEMESH-X", hook: "FORWARD"}
					if what == "place" {
						err = placeJump(b, have, c)
					} else {
						err = removeChains(b, have, []key{{"filter", "EDGEMESH-X"}})
					}
					if err != nil {
						t.Error(err)
					}
					if got := others(); !slices.Equal(got, want) {
						t.Errorf("other programs' rules are %q, were %q", got, want)
					}
					now, err := b.save()
					if err != nil {
						t.Fatal(err)
					}
					if _, there := now.chains[key{"filter", "EDGEMESH-X"}]; there != (what == "place") || what == "place" && !now.jumpInPlace(c) {
						t.Errorf("afterwards: %q", now.chains)
					}
				})
			}
		}
	}
}
