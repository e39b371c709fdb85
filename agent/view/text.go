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
