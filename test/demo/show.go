package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// show prints the demo's progress.
type show struct {
	out   io.Writer
	start time.Time
}

func (s *show) title(format string, args ...any) {
	fmt.Fprintf(s.out, "\n● %s\n", fmt.Sprintf(format, args...))
}

func (s *show) text(format string, args ...any) {
	for line := range strings.Lines(strings.TrimRight(fmt.Sprintf(format, args...), "\n") + "\n") {
		fmt.Fprint(s.out, "  "+line)
	}
}

// step does something and prints a tick with the time it took.
func (s *show) step(what string, f func() (note string, err error)) error {
	start := time.Now()
	note, err := f()
	took := time.Since(start)
	if err != nil {
		fmt.Fprintf(s.out, "  ✗ %s\n", what)
		return fmt.Errorf("%s: %w", what, err)
	}
	if note != "" {
		what += ": " + note
	}
	fmt.Fprintf(s.out, "  ✓ %-72s %6.0f ms\n", what, float64(took.Microseconds())/1000)
	return nil
}
