package iptables

import (
	"testing"

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
