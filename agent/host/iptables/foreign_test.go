package iptables

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestCounts: the rules that drop, by what they have dropped; others do not count.
func TestCounts(t *testing.T) {
	const save = "# c\n*mangle\n:FORWARD ACCEPT [9:9]\n[7:9] -A FORWARD -j MARK --set-xmark 0x1/0x1\nCOMMIT\n*filter\n:INPUT DROP [1:40]\n:FORWARD DROP [%1:120]\n:USER - [0:0]\n" +
		"[5:400] -A FORWARD -s 10.0.0.0/8 -j ACCEPT\n[%2:40] -A FORWARD -m comment --comment \"two words\" -j REJECT --reject-with icmp-port-unreachable\n" +
		"[%3:40] -A USER -d 10.1.0.0/16 -j DROP\n[4:1] -A USER -j DROPS\n[4:1] -A USER -j DROP-foo\n[%4:1] -A EDGEMESH-FORWARD -j DROP\nCOMMIT\n"
	counts := func(n ...string) Counts {
		out, text := Counts{}, save
		for i, x := range n {
			text = strings.Replace(text, fmt.Sprint("%", i+1), x, 1)
		}
		out.parse(false, text)
		return out
	}
	before := counts("3", "0", "0", "0")
	if len(before) != 5 {
		t.Errorf("rules that drop: %v", before)
	}
	for _, c := range []struct {
		after   Counts
		want    []string
		foreign bool
	}{
		{before, nil, false},
		{counts("4", "0", "0", "0"), []string{"FORWARD, policy drop"}, true},
		{counts("4", "0", "0", "1"), []string{"FORWARD, policy drop", "`-A EDGEMESH-FORWARD -j DROP`"}, false},
		{counts("3", "2", "0", "0"), []string{"`-A FORWARD -m comment --comment \"two words\" -j REJECT --reject-with icmp-port-unreachable`"}, true},
		{counts("4", "0", "1", "0"), []string{"FORWARD, policy drop", "`-A USER -d 10.1.0.0/16 -j DROP`"}, true},
		{counts("3", "0", "0", "1"), []string{"`-A EDGEMESH-FORWARD -j DROP`"}, false},
	} {
		if got, foreign := c.after.Since(before, false, "filter", "FORWARD"); !slices.Equal(got, c.want) || foreign != c.foreign {
			t.Errorf("got %q, foreign %v; want %q, %v", got, foreign, c.want, c.foreign)
		}
		if got, _ := c.after.Since(before, false, "mangle", "FORWARD"); len(got) > 0 {
			t.Errorf("of another table: %q", got)
		}
	}
	if got, foreign := counts("4", "0", "0", "0").Since(before, false, "filter", "INPUT"); len(got) > 0 || foreign {
		t.Errorf("of another hook: %q", got)
	}
}
