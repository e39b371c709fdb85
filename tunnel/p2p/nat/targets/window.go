package targets

import (
	"slices"
	"time"
)

// window is what was spent in the last minute.
type window struct{ spent []spending }

type spending struct {
	at      time.Duration
	packets int
}

// take spends packets if no more than most of them were spent within a minute then.
func (w *window) take(now time.Duration, packets, most int) bool {
	if w.sum(now)+packets > most {
		return false
	}
	w.spent = append(w.spent, spending{now, packets})
	return true
}

// sum is what was spent within a minute until now.
func (w *window) sum(now time.Duration) (sum int) {
	w.spent = slices.DeleteFunc(w.spent, func(s spending) bool { return now-s.at >= time.Minute })
	for _, s := range w.spent {
		sum += s.packets
	}
	return sum
}
