// Package wording prepares text for operators.
//
//	oneline.go    several errors, or an error of several lines, on one line
//	printable.go  text of other machines, safe to print
//	writer.go     a stream of it
//	closest.go    names that a mistyped one may have meant
//	format.go     numbers, plurals, bytes, lists and durations
//	wrap.go       text in lines of a screen's width
package wording

import (
	"slices"
	"strings"
)

// list is several errors on one line, each text once; errors.Join's text has one line each.
type list []error

// Join is errors.Join with a text of one line.
func Join(errs ...error) error {
	l := list(slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil }))
	if len(l) == 0 {
		return nil
	}
	return l
}

func (l list) Error() string {
	var texts []string
	for _, err := range l {
		if text := OneLine(err.Error()); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, "; ")
}

func (l list) Unwrap() []error { return l }

// OneLine joins the lines of text with "; ".
func OneLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune("\n\r\v\f\u0085\u2028\u2029", r) })
	kept := lines[:0]
	for _, line := range lines {
		if line = strings.TrimSpace(line); line != "" {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "; ")
}
