// Package version says which build of the project a program is, and which versions of
// protocols and formats it understands.
package version

import (
	"fmt"
	"io"
	"runtime"
	"strings"
)

// Set by the linker (Makefile); a build without it says so.
var (
	number = "dev"     // git describe, or the release: v0.2.0
	commit = "unknown" // the full hash
	date   = "unknown" // of the commit: RFC 3339, UTC
)

// Number is the version: of a release vMAJOR.MINOR.PATCH.
func Number() string { return number }

// Knows is a protocol or format and the versions of it that a program understands.
type Knows struct {
	What     string
	Versions []string
}

// Print writes name, version and commit in the first line, then a line of
// "what: values" for the build and for each of knows.
func Print(w io.Writer, knows ...Knows) error {
	first := fmt.Sprintf("edgemesh %s (commit %.12s)", strings.TrimPrefix(number, "v"), commit)
	lines := []string{first, "commit: " + commit, "date: " + date, fmt.Sprintf("go: %s %s/%s", runtime.Version(), runtime.GOOS, runtime.GOARCH)}
	for _, k := range knows {
		lines = append(lines, k.What+": "+strings.Join(k.Versions, " "))
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}
