// Package clitest holds what all command lines are tested for.
package clitest

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"edgemesh/internal/cli"
)

// Help has the help of every command printed, and wants each line in 80 columns.
func Help(t *testing.T, newRoot func() *cobra.Command) {
	t.Helper()
	n := 0
	var walk func(c *cobra.Command, path []string)
	walk = func(c *cobra.Command, path []string) {
		n++
		var out strings.Builder
		if code := cli.Execute(t.Context(), newRoot(), append(path, "--help"), &out, &out); code != 0 {
			t.Errorf("%v --help: exit code %d", path, code)
		}
		Narrow(t, out.String(), 80)
		for _, sub := range c.Commands() {
			if sub.DisableFlagParsing {
				continue // no help
			}
			walk(sub, append(path[:len(path):len(path)], sub.Name()))
		}
	}
	walk(newRoot(), nil)
	if n < 5 {
		t.Errorf("only %d commands", n)
	}
}

// Narrow wants no line of text wider than so many columns.
func Narrow(t *testing.T, text string, width int) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > width {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}
