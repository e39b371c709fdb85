package view

import (
	"fmt"
	"time"

	"edgemesh/internal/wording"
)

// Duration is d for a person; an age is not negative.
func Duration(d time.Duration) string { return wording.Duration(max(d, 0).Truncate(time.Second)) }

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
