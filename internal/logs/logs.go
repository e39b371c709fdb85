// Package logs makes a program's logger, whose level can be changed while the program runs.
//
//	logs.go    formats and levels
//	text.go    values as a person reads them
//	switch.go  a program's socket, and the level over HTTP on one of its own where it has no other
package logs

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"edgemesh/internal/wording"
)

// Formats and Levels are what a configuration may say; the first format is the default.
var (
	Formats = []string{"text", "json"}                   //nolint:gochecknoglobals // a constant
	Levels  = []string{"debug", "info", "warn", "error"} //nolint:gochecknoglobals // a constant
)

// Config is the `log` key of a configuration.
type Config struct {
	Format string `json:"format"` // text or json; "" is text
	Level  string `json:"level"`  // one of Levels; "" is info
}

// Check says what is wrong with each key; an empty text is no error.
func (c Config) Check() (format, level string) {
	if c.Format != "" && !slices.Contains(Formats, c.Format) {
		format = fmt.Sprintf("%q is not one of %s", c.Format, strings.Join(Formats, ", "))
	}
	if _, err := Parse(c.Level); c.Level != "" && err != nil {
		level = err.Error()
	}
	return format, level
}

// Parse reads the name of a level.
func Parse(text string) (slog.Level, error) {
	if !slices.Contains(Levels, strings.ToLower(text)) {
		return 0, fmt.Errorf("%q is not one of %s%s", text, strings.Join(Levels, ", "), wording.Offer(text, Levels))
	}
	var l slog.Level
	err := l.UnmarshalText([]byte(text))
	return l, err
}

// New returns a logger that writes to w as c, which is checked, says, and its level. verbose begins with debug.
func New(w io.Writer, c Config, verbose bool) (*slog.Logger, *slog.LevelVar) {
	var v slog.LevelVar
	if l, err := Parse(c.Level); err == nil {
		v.Set(l)
	}
	if verbose {
		v.Set(slog.LevelDebug)
	}
	o := &slog.HandlerOptions{Level: &v, ReplaceAttr: harmless}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o)), &v
	}
	o.ReplaceAttr = readable
	return slog.New(slog.NewTextHandler(w, o)), &v
}
