package firewall

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

const ufw = `*mangle
:INPUT ACCEPT [0:0]
COMMIT
*filter
:INPUT DROP [12:720]
:ufw-user-input - [0:0]
-A INPUT -j ufw-before-input
-A INPUT -j ufw-user-input
-A ufw-before-input -i lo -j ACCEPT
-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-user-input -p tcp -m tcp --dport 22 -j ACCEPT
%-A ufw-user-input -s 192.0.2.0/24 -p udp -m udp --dport 4470 -j ACCEPT
COMMIT
`

const firewalld = `table inet firewalld { # progname firewalld
	chain filter_INPUT {
		type filter hook input priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		jump filter_INPUT_ZONES
		reject with icmpx admin-prohibited
	}
	chain filter_INPUT_ZONES {
		goto filter_IN_public
	}
	chain filter_IN_public_allow {
		tcp dport 22 accept
%	}
}
`

const plain = `table inet filter {
	set admins {
		type ipv4_addr
		elements = { 192.0.2.7,
			     192.0.2.8 }
	}
	chain input {
		type filter hook input priority filter; policy drop;
		ct state vmap { established : accept, related : accept, invalid : drop }
		iifname "lo" accept
%		counter packets 3 bytes 180 comment "the end"
	}
	chain forward {
		type filter hook forward priority filter; policy drop;
	}
}
`

func TestClosing(t *testing.T) {
	for name, c := range map[string]struct {
		saved, ruleset string
		by, remedy     string // of 4470/tcp; "" if it is open
	}{
		"nothing":             {},
		"ufw":                 {saved: ufw, by: "iptables :INPUT DROP [12:720], and no rule accepts", remedy: "ufw allow 4470/tcp"},
		"ufw, allowed":        {saved: strings.Replace(ufw, "%", "-A ufw-user-input -p tcp -m tcp --dport 4470 -j ACCEPT\n", 1)},
		"ufw, a range":        {saved: strings.Replace(ufw, "%", "-A ufw-user-input -p tcp -m multiport --dports 80,4000:5000 -j ACCEPT\n", 1)},
		"ufw, from one range": {saved: strings.Replace(ufw, "%", "-A ufw-user-input -s 192.0.2.0/24 -p tcp -m tcp --dport 4470 -j ACCEPT\n", 1), by: ":INPUT DROP"},
		"ufw, denied":         {saved: strings.Replace(ufw, "%", "-A ufw-user-input -p tcp -m tcp --dport 4470 -j DROP\n", 1), by: "iptables -A ufw-user-input -p tcp -m tcp --dport 4470 -j DROP"},
		"iptables": {saved: "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT\n-A INPUT -m comment --comment \"all else\" -j REJECT --reject-with icmp-port-unreachable\nCOMMIT\n",
			by: "iptables -A INPUT -m comment --comment \"all else\" -j REJECT", remedy: "iptables -I INPUT -p tcp --dport 4470 -j ACCEPT"},
		"firewalld": {ruleset: firewalld, by: "nftables table inet firewalld: reject with icmpx admin-prohibited, and no rule accepts",
			remedy: "firewall-cmd --permanent --add-port=4470/tcp && firewall-cmd --reload"},
		"firewalld, open": {ruleset: strings.Replace(firewalld, "%", "\t\ttcp dport 4470 accept\n", 1)},
		"nftables":        {ruleset: plain, by: "nftables table inet filter: type filter hook input priority filter; policy drop;", remedy: "a rule `tcp dport 4470 accept`"},
		"nftables, a set": {ruleset: strings.Replace(plain, "%", "\t\ttcp dport { 22, 80,\n\t\t\t  4470 } accept\n", 1)},
		"nftables, not it": {ruleset: strings.Replace(plain, "%", "\t\tudp dport 4470 accept\n\t\ttcp dport { 22, 80 } accept\n", 1),
			by: "policy"},
		"nftables, its own range": {ruleset: strings.Replace(plain, "%", "\t\tip saddr 192.0.2.0/24 tcp dport 4470 accept\n", 1), by: "policy"},
		"both, shown once":        {saved: ufw, ruleset: "table ip filter {\n\tchain INPUT {\n\t\ttype filter hook input priority filter; policy drop;\n\t}\n}\n", by: "iptables"},
		"forwarding alone":        {ruleset: "table ip x {\n\tchain f {\n\t\ttype filter hook forward priority filter; policy drop;\n\t}\n}\n"},
		"what is no ruleset":      {saved: "*filter\n:INPUT", ruleset: "table inet x {\n\tchain y {\n}}}\n\t\ttcp dport {"},
	} {
		clean := func(text string) string { return strings.Replace(text, "%", "", 1) }
		by, remedy := Port{Proto: "tcp", Number: 4470}.Closing(clean(c.saved), clean(c.ruleset))
		if (c.by == "") != (by == "") || !strings.Contains(by, c.by) || !strings.Contains(remedy, c.remedy) {
			t.Errorf("%s: %q, %q, want %q, %q", name, by, remedy, c.by, c.remedy)
		}
	}
}

func TestFamilies(t *testing.T) {
	const ipv4 = "table ip x {\n\tchain i {\n\t\ttype filter hook input priority filter; policy drop;\n\t}\n}\n"
	for v6, want := range map[bool]string{false: "nftables table ip x", true: "ip6tables :INPUT DROP"} {
		saved := map[bool]string{true: ":INPUT DROP [0:0]\n"}[v6]
		by, remedy := Port{"udp", 4470, v6}.Closing("*filter\n"+saved, ipv4)
		if !strings.Contains(by, want) || v6 && !strings.HasPrefix(remedy, "ip6tables -I INPUT -p udp") {
			t.Errorf("IPv6 %v: %q, %q", v6, by, remedy)
		}
	}
	if by, _ := (Port{"udp", 4470, true}).Closing("", ipv4); by != "" {
		t.Errorf("IPv4's rules close IPv6: %s", by)
	}
}

// What the programs of this machine print is read.
func TestRealPrograms(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root, for a network namespace")
	}
	for _, program := range []string{"nft", "iptables-save", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("SKIPPED: %v", err)
		}
	}
	out, err := exec.Command("unshare", "-n", "sh", "-ec", `
		iptables -P INPUT DROP; iptables -A INPUT -i lo -j ACCEPT
		nft 'add table inet own; add chain inet own in { type filter hook input priority 5; policy accept; }; add rule inet own in tcp dport { 22, 80 } accept; add rule inet own in counter drop'
		iptables-save; echo ----; iptables -P INPUT ACCEPT; iptables-save; echo ----; nft list ruleset`).CombinedOutput()
	parts := strings.Split(string(out), "----\n")
	if err != nil || len(parts) != 3 {
		t.Fatalf("%v: %s", err, out)
	}
	for _, c := range []struct {
		saved string
		port  int
		by    string
	}{
		{parts[0], 4470, "iptables :INPUT DROP"}, {parts[1], 4470, "nftables table inet own: counter packets"}, {parts[1], 80, ""},
	} {
		if by, _ := (Port{Proto: "tcp", Number: c.port}).Closing(c.saved, parts[2]); (by == "") != (c.by == "") || !strings.Contains(by, c.by) {
			t.Errorf("port %d: %q, want %q", c.port, by, c.by)
		}
	}
}
