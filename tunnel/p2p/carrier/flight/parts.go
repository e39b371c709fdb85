package flight

import "slices"

// rowParts is how many pieces a row has at most. What a piece costs that a peer puts wherever it likes is bounded by a row, 2.5 KB to be
// moved, and by the rows of a bucket, bucketParts of 24 bytes in half of them.
const rowParts = 64

// parts are a bucket's pieces behind holes, by offset, in rows of rowParts at most and one at least.
type parts struct {
	rows [][]part
	n    int
}

// find is where the piece at an offset is, or belongs.
func (ps *parts) find(offset uint32) (row, at int, found bool) {
	row, found = slices.BinarySearchFunc(ps.rows, offset, func(r []part, offset uint32) int { return int(int32(r[0].offset - offset)) })
	if found || row == 0 {
		return row, 0, found
	}
	row--
	at, found = slices.BinarySearchFunc(ps.rows[row], offset, func(p part, offset uint32) int { return int(int32(p.offset - offset)) })
	return row, at, found
}

// insert puts a piece where find says that it belongs.
func (ps *parts) insert(row, at int, p part) {
	ps.n++
	switch {
	case row == len(ps.rows):
		ps.rows = append(ps.rows, nil)
	case len(ps.rows[row]) == rowParts && at == rowParts: // in order: a row of its own
		row, at = row+1, 0
		ps.rows = slices.Insert(ps.rows, row, make([]part, 0, rowParts))
	case len(ps.rows[row]) == rowParts:
		half := slices.Clone(ps.rows[row][rowParts/2:])
		clear(ps.rows[row][rowParts/2:])
		ps.rows[row] = ps.rows[row][:rowParts/2]
		ps.rows = slices.Insert(ps.rows, row+1, half)
		if at > rowParts/2 {
			row, at = row+1, at-rowParts/2
		}
	}
	ps.rows[row] = slices.Insert(ps.rows[row], at, p)
}

// first is the first piece, nil if there is none; drop removes it.
func (ps *parts) first() *part {
	if ps.n == 0 {
		return nil
	}
	return &ps.rows[0][0]
}

func (ps *parts) drop() {
	ps.n--
	ps.rows[0][0] = part{}
	if ps.rows[0] = ps.rows[0][1:]; len(ps.rows[0]) == 0 {
		ps.rows = ps.rows[1:]
	}
}
