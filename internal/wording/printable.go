package wording

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Foreign is where text of another machine enters: on one line, Printable, of at most so many bytes.
func Foreign(text string, most int) string {
	text = Printable(OneLine(beginning(text, 2*most))) // whatever it is, it is read once
	if len(text) <= most {
		return text
	}
	return beginning(text, most-len("…")) + "…"
}

// beginning is that of text, of at most so many bytes, without a character that is cut.
func beginning(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}

// Printable returns text of another machine on one line, without control characters and without those that only format, such
// as the ones that reverse what follows: it cannot move the cursor, begin a line of its own, or hide what is beside it.
func Printable(text string) string { return strings.Map(harmless, text) }

// PrintableLines is Printable that keeps the ends of lines.
func PrintableLines(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' {
			return r
		}
		return harmless(r)
	}, text)
}

func harmless(r rune) rune {
	switch {
	case r == '\n', r == '\t', r == '\u2028', r == '\u2029':
		return ' '
	case r == utf8.RuneError, unicode.IsControl(r), unicode.Is(unicode.Cf, r):
		return '?'
	}
	return r
}
