// Package report holds what a benchmark came to and shows it: rows of values by
// round, medians, what was promised beside what was measured, as Markdown.
// It measures nothing and reads no clock: equal reports give equal pages.
package report
