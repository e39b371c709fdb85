// Package view shows an operator what the agent says: as text for a terminal, or plain in a pipe. It does no I/O but
// output, and keeps nothing.
//
//	view.go      names of package screen; durations and round trips
//	status.go    the verdict, the summary, relays and pools
//	peers.go     peers by path, and which are shown
//	peer.go      one peer
//	ping.go      probes
//	netcheck.go  what the network lets through
//	findings.go  what is wrong, and what to do
package view

import (
	"fmt"
	"time"

	"edgemesh/internal/screen"
	"edgemesh/internal/wording"
)

// Screen is where output goes.
type Screen = screen.Screen

type (
	table  = screen.Table
	colour = screen.Colour
)

const (
	plain  = screen.Plain
	bold   = screen.Bold
	dim    = screen.Dim
	red    = screen.Red
	green  = screen.Green
	yellow = screen.Yellow
	cyan   = screen.Cyan
)

// clean makes text of other machines safe to print: no control characters, no second line.
func clean(text string) string { return wording.Foreign(text, 2<<10) }

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
