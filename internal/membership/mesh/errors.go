package mesh

import (
	"errors"
	"fmt"
	"strings"
)

// ErrNotMember means that the membership does not list this node.
var ErrNotMember = errors.New("this node is not in the membership")

// MaxProblems bounds how many problems an Invalid lists; the others are only counted.
const MaxProblems = 20

// Problem is one mistake in a document.
type Problem struct {
	Field  string // path as written in YAML, e.g. nodes[2].podCIDRs[0]; "" is the document
	Reason string // what is wrong and, where not obvious, what to do
}

func (p Problem) String() string {
	if p.Field == "" {
		return p.Reason
	}
	return p.Field + ": " + p.Reason
}

// Invalid is the error of a document with one or more problems, so that they
// can be fixed together. The zero value has none; see Err.
type Invalid struct {
	File     string // where the document came from, "" if not from a file
	Problems []Problem
	More     int // problems beyond MaxProblems
}

// Addf records a problem of field.
func (e *Invalid) Addf(field, format string, args ...any) {
	if len(e.Problems) == MaxProblems {
		e.More++
		return
	}
	e.Problems = append(e.Problems, Problem{field, fmt.Sprintf(format, args...)})
}

// Err is nil without problems, otherwise e.
func (e *Invalid) Err() error {
	if len(e.Problems) == 0 {
		return nil
	}
	return e
}

// Error has one line per problem, each with the file it is in.
func (e *Invalid) Error() string {
	prefix := ""
	if e.File != "" {
		prefix = e.File + ": "
	}
	var b strings.Builder
	for i, p := range e.Problems {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(prefix + p.String())
	}
	if e.More > 0 {
		fmt.Fprintf(&b, "\n%sand %d more", prefix, e.More)
	}
	return b.String()
}
