package host

import (
	"strings"
	"testing"

	"edgemesh/agent/findings"
	"edgemesh/internal/cni/conf"
)

// TestOthersConfigureInterfaces: what dhcpcd, connman and NetworkManager do to each interface that they find is undone, counted and
// reported; what an operator routes to a pod, or to IPv6 Services, on purpose stays.
func TestOthersConfigureInterfaces(t *testing.T) {
	t.Parallel()
	l := newLab(t, "")
	setAlias(t, "vethA", conf.PodAlias+podA4+" eth0 0123456789ab edgemesh")
	run(t, `
sysctl -qw net.ipv6.conf.vethA.disable_ipv6=1
ip route add 192.168.77.0/24 via `+podA4+` dev edgemesh-br
ip route add 10.244.7.0/24 dev edgemesh-tun
ip -6 route add fdaa:96::/112 dev edgemesh-br`)
	wantUnchanged(t, l.host, dual())
	before := found(t)
	for done, commands := range map[string]string{
		"dhcpcd without an answer": "ip addr add 169.254.77.3/16 dev vethA noprefixroute\nip route add default dev vethA metric 1005 proto dhcp\nip route add 169.254.0.0/16 dev vethA metric 1005",
		"NetworkManager":           "ip addr add 192.168.9.5/24 dev vethA\nip route add default via 192.168.9.1 dev vethA metric 100",
		"a pod that answers DHCP":  "ip addr add 192.168.9.5/24 dev edgemesh-br\nip route add default via " + podA4 + " dev edgemesh-br metric 50 proto dhcp",
		"on the TUN":               "ip addr add 169.254.77.4/16 dev edgemesh-tun\nip route add 198.51.100.0/24 dev edgemesh-tun",
		"IPv6":                     "sysctl -qw net.ipv6.conf.vethA.disable_ipv6=0\nip -6 addr add 2001:db8::5/64 dev vethA nodad\nip -6 route add default dev vethA metric 5",
		"IPv6 on the bridge":       "ip -6 route add default dev edgemesh-br metric 5\nip -6 route add 2001:db8:5::/64 dev edgemesh-br proto ra\nip -6 route add fd77::/64 dev edgemesh-br proto ra",
	} {
		removed := l.host.Removed()
		run(t, commands)
		if out := wordsOf(l.host.Check(t.Context(), dual()), interfaces); !strings.Contains(out, "repair needed: delete ") && !strings.Contains(out, "disable_ipv6") {
			t.Errorf("%s: doctor: %s", done, out)
		}
		mustSet(t, l.host, dual())
		wantFound(t, done, before)
		wantUnchanged(t, l.host, dual())
		if l.host.Removed() == removed {
			t.Errorf("%s: not counted", done)
		}
	}
	f := l.host.Others()
	if len(f) != 1 || f[0].Severity != findings.Warning || !strings.Contains(f[0].Text, "the agent removed ") || !strings.Contains(f[0].Remedy, "`veth*`") {
		t.Errorf("findings: %+v", f)
	}
	if out := l.host.Undone(); len(out) != 0 {
		t.Errorf("said twice: %+v", out)
	}
}

// wordsOf is the text of one finding.
func wordsOf(all []findings.Finding, id string) string {
	for _, f := range all {
		if f.ID == id {
			return f.Text
		}
	}
	return ""
}

// TestPodSetDown: a pod's interface that another program set down, or took from the bridge, is noticed and back; one that ADD has not
// started stays as it is.
func TestPodSetDown(t *testing.T) {
	l := newLab(t, "")
	setAlias(t, "vethA", conf.PodAlias+podA4+" eth0 0123456789ab edgemesh")
	run(t, "ip link add vethC type veth peer name inC\nip link set inC up\nip link set vethC master edgemesh-br")
	setAlias(t, "vethC", conf.PodAlias+"10.244.1.9 eth0 0123456789cd edgemesh")
	mustSet(t, l.host, dual())
	a, b := l.listen(l.podA, podA4, serverPort), l.listen(l.podB, podB4, serverPort)
	heard, end := listenTo(t, l.host)
	for _, damage := range []string{"ip link set vethA down", "ip link set vethA nomaster", "ip link set vethA mtu 1000", "ip addr add 192.0.2.7/24 dev vethA", "ip route add 192.0.2.0/24 dev edgemesh-br"} {
		quiet(heard)
		run(t, damage)
		wantHeard(t, heard, damage)
		mustSet(t, l.host, dual())
		if err := send(b, damage, podA4, serverPort); err != nil {
			t.Fatal(err)
		}
		l.receive(a, damage)
		wantUnchanged(t, l.host, dual())
	}
	end()
	if out := run(t, "ip -br link show vethC"); strings.Contains(out, "UP,") {
		t.Errorf("ADD was in the midst of it: %s", out)
	}
}
