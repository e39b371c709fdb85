package logs

import (
	"fmt"
	"log/slog"
	"strings"
	"unicode"

	"edgemesh/internal/wording"
)

// maxError bounds an error in a log, maxString another text, which may be a stack; in bytes.
const maxError, maxString = 4 << 10, 64 << 10

// harmless bounds texts: they may have words of other machines in them. Those that format only, as to reverse what follows, are
// replaced; a handler escapes control characters itself.
func harmless(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Resolve(); v.Kind() {
	case slog.KindString:
		if text := v.String(); len(text) > maxString {
			a.Value = slog.StringValue(wording.Foreign(text, maxString))
		} else if strings.ContainsFunc(text, func(r rune) bool { return unicode.Is(unicode.Cf, r) }) {
			a.Value = slog.StringValue(wording.PrintableLines(text))
		}
	case slog.KindAny:
		if err, is := v.Any().(error); is && err != nil { // fmt survives one whose Error panics
			a.Value = slog.StringValue(wording.Foreign(fmt.Sprint(err), maxError))
		}
	default:
	}
	return a
}

// readable has durations and lists in a text log as in all other output: 10m in place of 10m0s, "a, b" in place of [a b]. A list
// without elements, and an error that is nil, are left out. A JSON log keeps the values, for programs.
func readable(groups []string, a slog.Attr) slog.Attr {
	a = harmless(groups, a)
	v := a.Value.Resolve().Any()
	text, is := wording.Value(v)
	switch {
	case v == nil, is && text == "":
		return slog.Attr{}
	case is:
		return slog.String(a.Key, text)
	}
	return a
}
