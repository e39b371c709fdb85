package report

import "errors"

var (
	// ErrReport means that a file is no report.
	ErrReport = errors.New("not a report")
	// ErrMarks means that a page has no place for the figures: a line MarkBegin and
	// a line MarkEnd after it.
	ErrMarks = errors.New("no marks around the figures")
)
