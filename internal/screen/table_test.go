package screen

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func printed(t Table, width int) string {
	var b strings.Builder
	t.Print(&b, Screen{Width: width})
	return b.String()
}

// relays is a table as status has it, whose last words matter most.
func relays() Table {
	t := Table{Below: []string{"ADDRESS", "ERROR"}, Spare: []string{"RTT"}}
	t.Add(Plain, "RELAY", "ADDRESS", "CONNECTED", "RTT", "ERROR")
	t.Add(Plain, "…layrelay", "/ip4/203.0.113.7/udp/4470/quic-v1", "no", "-", "dial tcp 203.0.113.7:4470: connect: connection refused")
	t.Add(Plain, "…other", "/ip4/203.0.113.8/tcp/4470", "yes", "12.3 ms", "-")
	return t
}

func TestNothingIsLost(t *testing.T) {
	for _, width := range []int{20, 40, 60, 80, 100, 120, 200} {
		out := printed(relays(), width)
		if !strings.Contains(strings.Join(strings.Fields(out), " "), "connect: connection refused") {
			t.Errorf("%d columns: the reason is cut:\n%s", width, out)
		}
		for line := range strings.Lines(out) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > width {
				t.Errorf("%d columns: a line of %d: %s", width, n, line)
			}
		}
	}
}

func TestLayout(t *testing.T) {
	const at80 = `RELAY      ADDRESS                            CONNECTED  RTT
…layrelay  /ip4/203.0.113.7/udp/4470/quic-v1  no         -
    dial tcp 203.0.113.7:4470: connect: connection refused
…other     /ip4/203.0.113.8/tcp/4470          yes        12.3 ms
`
	const at40 = `RELAY      CONNECTED  RTT
…layrelay  no         -
    /ip4/203.0.113.7/udp/4470/quic-v1
    dial tcp 203.0.113.7:4470: connect:
    connection refused
…other     yes        12.3 ms
    /ip4/203.0.113.8/tcp/4470
`
	for width, want := range map[int]string{80: at80, 40: at40} {
		if got := printed(relays(), width); got != want {
			t.Errorf("%d columns:\n%s\nwant\n%s", width, got, want)
		}
	}
	wide := printed(relays(), 0)
	if strings.Count(wide, "\n") != 3 {
		t.Errorf("in a pipe a row is a line:\n%s", wide)
	}
	if got := printed(relays(), 110); strings.Count(got, "\n") != 4 || !strings.Contains(got, "ERROR\n") {
		t.Errorf("the last column continues below itself:\n%s", got)
	}
	if got := printed(relays(), 24); strings.Contains(got, "RTT") || !strings.Contains(got, "CONNECTED") {
		t.Errorf("RTT can be spared:\n%s", got)
	}
	var keys Table
	keys.Add(Plain, "NAT", "a port for each destination and some more words")
	keys.Add(Plain, "proxy", "none")
	if got := printed(keys, 36); got != "NAT    a port for each destination\n       and some more words\nproxy  none\n" {
		t.Errorf("%q", got)
	}
}
