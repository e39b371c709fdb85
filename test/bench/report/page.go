package report

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// File names in a report's directory.
const (
	DataFile = "results.json"
	PageFile = "README.md"
)

// The figures in a page of the project stand between these lines.
const (
	MarkBegin = "<!-- figures of `make bench`: begin -->"
	MarkEnd   = "<!-- figures of `make bench`: end -->"
)

// Write writes data and page into the directory, which is made if need be.
func (r Report) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := r.save(filepath.Join(dir, DataFile)); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, PageFile), []byte(r.Markdown()))
}

// Embed puts the summary between the marks of a page. dir is where the page of all
// figures is, seen from that one. The error is ErrMarks when the page has no marks; it is
// not changed then.
func (r Report) Embed(page, dir string) error {
	old, err := os.ReadFile(page)
	if err != nil {
		return fmt.Errorf("read page: %w", err)
	}
	updated, err := r.embedded(string(old), dir)
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	return writeFile(page, []byte(updated))
}

func (r Report) embedded(page, dir string) (string, error) {
	before, rest, ok := strings.Cut(page, MarkBegin+"\n")
	_, after, ok2 := strings.Cut(rest, MarkEnd+"\n")
	if !ok || !ok2 {
		return "", ErrMarks
	}
	return before + MarkBegin + "\n" + r.Summary(dir) + MarkEnd + "\n" + after, nil
}
