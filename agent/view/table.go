package view

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// table is rows of cells. A row with one cell is a heading: it does not widen the columns.
type table struct {
	rows    []row
	colours []colour // by row
}

type row []string

func (t *table) add(c colour, cells ...string) {
	for i := range cells {
		cells[i] = clean(cells[i])
	}
	t.rows, t.colours = append(t.rows, cells), append(t.colours, c)
}

const gap = "  "

// columns is how wide each column is: as its widest cell.
func (t *table) columns() []int {
	var widths []int
	for _, r := range t.rows {
		for i := range r {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			if len(r) > 1 {
				widths[i] = max(widths[i], utf8.RuneCountInString(r[i]))
			}
		}
	}
	return widths
}

// width is how wide the rows are, headings aside.
func (t *table) width() int {
	sum := -len(gap)
	for _, w := range t.columns() {
		sum += w + len(gap)
	}
	return sum
}

// print writes the columns; the last one is not padded.
func (t *table) print(w io.Writer, s Screen) {
	widths := t.columns()
	for n, r := range t.rows {
		var line strings.Builder
		for i, cell := range r {
			line.WriteString(cell)
			if i < len(r)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)) + gap)
			}
		}
		fmt.Fprintln(w, s.paint(t.colours[n], s.cut(line.String())))
	}
}
