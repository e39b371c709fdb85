package wording

import (
	"strings"
	"testing"

	"edgemesh/internal/wording/wordingtest"
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

// What another machine says is bounded, on one line, and harmless, wherever it is cut.
func TestForeign(t *testing.T) {
	for _, text := range []string{wordingtest.Hostile(), strings.Repeat("é", 5000), strings.Repeat("\u2028x", 5000), strings.Repeat("\xff", 5000)} {
		for most := 10; most < 40; most++ {
			if got := Foreign(text, most); got == "" {
				t.Errorf("%.20q: nothing is left", text)
			} else if bad := wordingtest.Bad(got, most); bad != "" {
				t.Errorf("%.20q in %d bytes %s: %q", text, most, bad, got)
			}
		}
	}
	for in, want := range map[string]string{"a\nb": "a; b", "0123456789": "0123456789", "0123456789é": "0123456…", "": ""} {
		if got := Foreign(in, 10); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
