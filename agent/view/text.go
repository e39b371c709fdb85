package view

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Duration is d for a person, as kubectl prints it: 45s, 3m12s, 4h7m, 10d.
func Duration(d time.Duration) string { return duration.HumanDuration(max(d, 0)) }

func since(t *time.Time, now time.Time) string {
	if t == nil || t.IsZero() {
		return "-"
	}
	return Duration(now.Sub(*t))
}

func millis(ms *float64) string {
	if ms == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f ms", *ms)
}

// bytes is n with a decimal unit.
func bytes(n uint64) string {
	const unit = 1000
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	v, suffix := float64(n), ""
	for _, u := range []string{"kB", "MB", "GB", "TB", "PB"} {
		v /= unit
		if suffix = u; v < unit {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", v, suffix)
}

// count is "1 thing" or "2 things".
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// shortID is the end of a peer ID, the part that differs.
func shortID(id string) string {
	const keep = 8
	if len(id) <= keep {
		return id
	}
	return "…" + id[len(id)-keep:]
}

// wrap breaks text between words into lines of at most width columns; a longer word is cut.
func wrap(text string, width int) []string {
	width = max(width, 1)
	var lines []string
	line := []rune{}
	for _, field := range strings.Fields(text) {
		word := []rune(field)
		if len(line) > 0 && len(line)+1+len(word) <= width {
			line = append(append(line, ' '), word...)
			continue
		}
		if len(line) > 0 {
			lines = append(lines, string(line))
		}
		for len(word) > width {
			lines, word = append(lines, string(word[:width])), word[width:]
		}
		line = slices.Clone(word)
	}
	if len(line) > 0 {
		lines = append(lines, string(line))
	}
	return lines
}
