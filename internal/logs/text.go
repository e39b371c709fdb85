package logs

import (
	"log/slog"

	"edgemesh/internal/wording"
)

// readable has durations and lists in a text log as in all other output: 10m in place of 10m0s, "a, b" in place of [a b]. A list
// without elements, and an error that is nil, are left out. A JSON log keeps the values, for programs.
func readable(_ []string, a slog.Attr) slog.Attr {
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
