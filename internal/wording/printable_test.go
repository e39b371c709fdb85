package wording

import (
	"strings"
	"testing"
)

func TestPrintable(t *testing.T) {
	for in, want := range map[string][2]string{
		"edge-1, ünïcode → fine":   {"edge-1, ünïcode → fine", "edge-1, ünïcode → fine"},
		"a\x1b[2J\x1b]0;x\x07\x9b": {"a?[2J?]0;x??", "a?[2J?]0;x??"},
		"ok\nbroken\tfake\r":       {"ok broken fake?", "ok\nbroken fake?"},
		"edge\u202e1\u200b\u2028.": {"edge?1? .", "edge?1? ."},
		"\xff\xfe":                 {"??", "??"},
		"":                         {"", ""},
	} {
		if got := [2]string{Printable(in), PrintableLines(in)}; got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// Characters arrive whole, wherever they are cut.
func TestWriter(t *testing.T) {
	const text = "ünïcode → 😀\x1b[2J\nnext\xff.\n"
	for size := 1; size <= len(text); size++ {
		var out strings.Builder
		w := Writer{To: &out}
		for at := 0; at < len(text); at += size {
			p := []byte(text[at:min(at+size, len(text))])
			if n, err := w.Write(p); n != len(p) || err != nil {
				t.Fatal(n, err)
			}
		}
		if got := out.String(); got != PrintableLines(text) {
			t.Errorf("in pieces of %d: %q", size, got)
		}
	}
}
