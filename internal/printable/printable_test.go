package printable

import "testing"

func TestText(t *testing.T) {
	for in, want := range map[string][2]string{
		"edge-1, ünïcode → fine":   {"edge-1, ünïcode → fine", "edge-1, ünïcode → fine"},
		"a\x1b[2J\x1b]0;x\x07\x9b": {"a?[2J?]0;x??", "a?[2J?]0;x??"},
		"ok\nbroken\tfake\r":       {"ok broken fake?", "ok\nbroken fake?"},
		"edge\u202e1\u200b\u2028.": {"edge?1? .", "edge?1? ."},
		"\xff\xfe":                 {"??", "??"},
		"":                         {"", ""},
	} {
		if got := [2]string{Text(in), Lines(in)}; got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
