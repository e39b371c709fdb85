package screen

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"edgemesh/internal/wording"
)

// Table is rows of cells. A row with one cell is a heading: it does not widen the columns. Where the rows are wider than the
// screen, the last column is broken into lines if enough is left for it; else columns of Below leave the rows, the last one
// first, for lines of their own below them, then those of Spare are left out, the first one first, then cells are cut.
type Table struct {
	Below, Spare []string // names of columns, of the first row with more than one cell

	rows    [][]string
	colours []Colour // by row
}

const (
	gap = "  "
	// least is in how many columns text is still read.
	least = 26
	// indent is where a line below its row begins.
	indent = "    "
)

// Add adds a row; its cells are made safe to print.
func (t *Table) Add(c Colour, cells ...string) {
	for i := range cells {
		cells[i] = wording.Printable(cells[i])
	}
	t.rows, t.colours = append(t.rows, cells), append(t.colours, c)
}

// Len is the number of rows.
func (t *Table) Len() int { return len(t.rows) }

// columns is how wide each column is: as its widest cell.
func (t *Table) columns() []int {
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

// Width is how wide the rows are, headings aside.
func (t *Table) Width() int { return t.layout(0).sum() }

// layout is where columns go.
type layout struct {
	widths []int // 0 < of those in the rows; -1: not there
	below  []int // columns on lines of their own
	names  int   // the row with the columns' names
}

func (l layout) sum() int {
	sum := -len(gap)
	for _, w := range l.widths {
		if w >= 0 {
			sum += w + len(gap)
		}
	}
	return sum
}

// last is the last column in the rows.
func (l layout) last() int {
	for i, w := range slices.Backward(l.widths) {
		if w >= 0 {
			return i
		}
	}
	return 0
}

// layout fits the columns into so many, 0 is no bound.
func (t *Table) layout(width int) layout {
	l := layout{widths: t.columns(), names: -1}
	var below, spare []int
	for n, r := range t.rows {
		if len(r) > 1 {
			l.names = n
			for i, name := range r {
				if slices.Contains(t.Below, name) {
					below = append(below, i)
				}
			}
			for _, name := range t.Spare {
				spare = append(spare, slices.Index(r, name))
			}
			break
		}
	}
	for width > 0 && l.sum() > width {
		last := l.last()
		left := width - (l.sum() - l.widths[last])
		switch {
		case left >= least:
			l.widths[last] = left
		case len(below) > 0:
			i := below[len(below)-1]
			below, l.widths[i] = below[:len(below)-1], -1
			l.below = append([]int{i}, l.below...)
		case len(spare) > 0:
			if i := spare[0]; i >= 0 {
				l.widths[i] = -1
			}
			spare = spare[1:]
		default:
			widest := slices.Index(l.widths, slices.Max(l.widths))
			l.widths[widest] = max(1, l.widths[widest]-(l.sum()-width))
			if l.widths[widest] == 1 {
				return l
			}
		}
	}
	return l
}

// Print writes the rows; the last column is not padded.
func (t *Table) Print(w io.Writer, s Screen) {
	l := t.layout(s.Width)
	for n, r := range t.rows {
		for _, line := range l.lines(r, s.Width, n == l.names) {
			fmt.Fprintln(w, s.Paint(t.colours[n], strings.TrimRight(line, " ")))
		}
	}
}

// lines are those of a row.
func (l layout) lines(r []string, width int, names bool) []string {
	if len(r) == 1 {
		return wording.Hang(strings.Repeat(" ", len(r[0])-len(strings.TrimLeft(r[0], " "))), r[0], width)
	}
	var line strings.Builder
	last, at := l.last(), 0
	for i, cell := range r {
		if l.widths[i] < 0 {
			continue
		}
		if i == last {
			at = utf8.RuneCountInString(line.String())
			break
		}
		cell = wording.Elide(cell, l.widths[i])
		line.WriteString(cell + strings.Repeat(" ", l.widths[i]-utf8.RuneCountInString(cell)) + gap)
	}
	text := ""
	if last < len(r) {
		text = r[last]
	}
	lines := []string{line.String() + text}
	if utf8.RuneCountInString(text) > l.widths[last] {
		lines = nil
		for i, part := range wording.Wrap(text, l.widths[last]) {
			if i > 0 {
				line.Reset()
				line.WriteString(strings.Repeat(" ", at))
			}
			lines = append(lines, line.String()+part)
		}
	}
	for _, i := range l.below {
		if !names && i < len(r) && r[i] != "" && r[i] != "-" {
			lines = append(lines, wording.Hang(indent, r[i], width)...)
		}
	}
	return lines
}
