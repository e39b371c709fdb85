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
	s.line("✓", what, took)
	return nil
}

// try is step for something that may fail without ending the demo.
func (s *show) try(what string, f func() (ok bool, err error)) error {
	start := time.Now()
	ok, err := f()
	if err != nil {
		fmt.Fprintf(s.out, "  ✗ %s\n", what)
		return fmt.Errorf("%s: %w", what, err)
	}
	mark := "✓"
	if !ok {
		mark, what = "–", what+": not yet"
	}
	s.line(mark, what, time.Since(start))
	return nil
}

func (s *show) line(mark, what string, took time.Duration) {
	fmt.Fprintf(s.out, "  %s %-72s %6.0f ms\n", mark, what, float64(took.Microseconds())/1000)
}
