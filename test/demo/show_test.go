package main

import (
	"errors"
	"strings"
	"testing"
)

// What did not succeed gets no tick.
func TestMarks(t *testing.T) {
	failed := errors.New("broken")
	for _, c := range []struct {
		ok   bool
		err  error
		want string
	}{
		{true, nil, "✓ TCP "},
		{false, nil, "– TCP: not yet "},
		{false, failed, "✗ TCP\n"},
	} {
		var out strings.Builder
		s := &show{out: &out}
		err := s.try("TCP", func() (bool, error) { return c.ok, c.err })
		if !errors.Is(err, c.err) || !strings.HasPrefix(out.String(), "  "+c.want) {
			t.Errorf("%v, %v: printed %q, returned %v", c.ok, c.err, out.String(), err)
		}
	}
}
