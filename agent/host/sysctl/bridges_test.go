package sysctl

import "testing"

// What an operator has written for br_netfilter's switches is found in each form that sysctl.d(5) allows.
func TestSets(t *testing.T) {
	for text, want := range map[string]bool{
		"net.bridge.bridge-nf-call-iptables = 1\n":                    true,
		"# a\n\n-net/bridge/bridge-nf-call-iptables=0":                true,
		"net.bridge.bridge-nf-call-* = 1":                             true,
		"net.ipv4.ip_forward=1\nnet.bridge.bridge-nf-call-iptables=1": true,
		"#net.bridge.bridge-nf-call-iptables=1":                       false,
		"; net.bridge.bridge-nf-call-iptables=1":                      false,
		"net.bridge.bridge-nf-call-ip6tables=1":                       false,
		"net.bridge.bridge-nf-call-iptables":                          false,
		"net.[=1":                                                     false,
	} {
		if got := sets(text, bridges[0]); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}
