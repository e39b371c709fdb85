// Package screen prints text for a terminal, in its width, or plain in a pipe.
//
//	screen.go  where it is shown: width, height, colours
//	table.go   rows in columns
package screen

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"edgemesh/internal/wording"
)

// Screen is where output goes. The zero value is a pipe: nothing is cut or broken into lines.
type Screen struct {
	Width  int // columns; 0: no bound
	Height int // lines; 0: unknown
	Colour bool
}

// Of describes w: plain unless it is a terminal. NO_COLOR turns colours off (no-color.org).
func Of(w io.Writer) Screen {
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

// Colour is an ANSI escape sequence (ECMA-48, SGR); "" is plain.
type Colour string

// Colours.
const (
	Plain  Colour = ""
	Bold   Colour = "\x1b[1m"
	Dim    Colour = "\x1b[2m"
	Red    Colour = "\x1b[31m"
	Green  Colour = "\x1b[32m"
	Yellow Colour = "\x1b[33m"
	Cyan   Colour = "\x1b[36m"
	reset         = "\x1b[0m"
)

// Paint colours text, where the screen has colours.
func (s Screen) Paint(c Colour, text string) string {
	if c == Plain || !s.Colour || text == "" {
		return text
	}
	return string(c) + text + reset
}

// Line prints text, made safe, in lines of the screen's width: after first, and below its first word.
func (s Screen) Line(w io.Writer, c Colour, first, text string) {
	for _, line := range wording.Hang(first, wording.Printable(text), s.Width) {
		fmt.Fprintln(w, s.Paint(c, line))
	}
}

// Fit is text of several lines in those of the screen's width.
func (s Screen) Fit(text string) (lines []string) {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if indent := line[:len(line)-len(strings.TrimLeft(line, " "))]; s.Width > 0 && utf8.RuneCountInString(line) > s.Width {
			lines = append(lines, wording.Hang(indent, line, s.Width)...)
			continue
		}
		lines = append(lines, line)
	}
	return lines
}

// Rows counts the lines that text takes on the screen, where long ones continue below.
func (s Screen) Rows(text string) int {
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

// Clear begins the next picture of --watch: on a terminal in place of the last one, else below it.
func (s Screen) Clear() string {
	if s.Width == 0 {
		return "\n"
	}
	return "\x1b[H\x1b[2J"
}
