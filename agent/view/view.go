// Package view shows an operator what the agent says: as text for a terminal, or plain in a pipe. It does no I/O but
// output, and keeps nothing.
//
//	view.go      where it is shown: width, height, colours
//	table.go     rows in columns
//	text.go      durations, bytes, short names
//	status.go    the summary, problems and relays
//	peers.go     peers by path, and which are shown
//	peer.go      one peer
//	ping.go      probes
//	netcheck.go  what the network lets through
//	findings.go  what doctor found
package view

import (
	"io"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"edgemesh/internal/wording"
)

// Screen is where output goes.
type Screen struct {
	Width  int // columns; 0: lines are not cut
	Height int // lines; 0: unknown
	Colour bool
}

// ScreenOf describes w: plain unless it is a terminal. NO_COLOR turns colours off (no-color.org).
func ScreenOf(w io.Writer) Screen {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return Screen{}
	}
	s := Screen{Colour: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
	if width, height, err := term.GetSize(int(f.Fd())); err == nil {
		s.Width, s.Height = width, height
	}
	return s
}

// colour is an ANSI escape sequence (ECMA-48, SGR); "" is plain.
type colour string

const (
	plain  colour = ""
	bold   colour = "\x1b[1m"
	dim    colour = "\x1b[2m"
	red    colour = "\x1b[31m"
	green  colour = "\x1b[32m"
	yellow colour = "\x1b[33m"
	cyan   colour = "\x1b[36m"
	reset         = "\x1b[0m"
)

// paint colours text, where the screen has colours.
func (s Screen) paint(c colour, text string) string {
	if c == plain || !s.Colour || text == "" {
		return text
	}
	return string(c) + text + reset
}

// cut shortens a line without escape sequences to the screen's width.
func (s Screen) cut(line string) string {
	if s.Width <= 0 || utf8.RuneCountInString(line) <= s.Width {
		return line
	}
	r := []rune(line)
	return string(r[:max(0, s.Width-1)]) + "…"
}

// rows counts the lines that text takes on the screen, where long ones continue below.
func (s Screen) rows(text string) int {
	n := 0
	for line := range strings.Lines(sgr.ReplaceAllString(text, "")) {
		n++
		if length := utf8.RuneCountInString(strings.TrimRight(line, "\n")); s.Width > 0 && length > s.Width {
			n += (length - 1) / s.Width
		}
	}
	return n
}

// sgr is a colour.
var sgr = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// clean makes text of other machines safe to print: no control characters, no second line.
func clean(text string) string { return wording.Printable(text) }

// Clear begins the next picture of --watch: on a terminal in place of the last one, else below it.
func (s Screen) Clear() string {
	if s.Width == 0 {
		return "\n"
	}
	return "\x1b[H\x1b[2J"
}
