// Package seldom says when something that may happen any number of times is worth a line in the log: once in a while for
// each of those who cause it.
package seldom

import (
	"sync"
	"time"
)

const (
	// pause is how long the same thing is not reported again.
	pause = time.Minute
	// most bounds the things that are remembered; above it nothing new is reported until some are old.
	most = 4096
)

// Log remembers what was reported. The zero value has reported nothing.
type Log struct {
	mu   sync.Mutex // a leaf
	last map[string]time.Time
}

// Due reports whether something is to be reported now; then it counts as reported.
func (l *Log) Due(what string) bool { return l.due(what, time.Now()) }

func (l *Log) due(what string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.last[what]; ok && now.Sub(at) < pause {
		return false
	}
	if len(l.last) >= most {
		for k, at := range l.last {
			if now.Sub(at) >= pause {
				delete(l.last, k)
			}
		}
		if len(l.last) >= most {
			return false
		}
	}
	if l.last == nil {
		l.last = make(map[string]time.Time)
	}
	l.last[what] = now
	return true
}
