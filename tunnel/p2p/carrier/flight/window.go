package flight

import "math/bits"

// expand returns the number next to near whose low 32 bits are low: as RFC 9000, A.3, within 2^31 of it.
func expand(near uint64, low uint32) uint64 {
	return near + uint64(int64(int32(low-uint32(near)))) //nolint:gosec // serial arithmetic
}

// windowLen is how many packet numbers a window reaches back.
const windowLen = 1 << 16

// window is a set of the last packet numbers.
type window struct {
	bits   [windowLen / 64]uint64
	newest uint64
	any    bool
}

// add adds n, and reports false if it was there, or is too old to say.
func (w *window) add(n uint64) bool {
	switch {
	case !w.any || n > w.newest:
		first := uint64(0)
		if w.any {
			first = w.newest/64 + 1
		}
		for i := max(first, n/64-min(n/64, windowLen/64-1)); i <= n/64; i++ {
			w.bits[i%(windowLen/64)] = 0
		}
		w.newest, w.any = n, true
	case w.newest-n >= windowLen-64 || w.has(n):
		return false
	}
	w.bits[n/64%(windowLen/64)] |= 1 << (n % 64)
	return true
}

func (w *window) has(n uint64) bool {
	return w.any && n <= w.newest && w.newest-n < windowLen-64 && w.bits[n/64%(windowLen/64)]>>(n%64)&1 != 0
}

// down counts how many numbers from n down are in the set, or are not, at most to the window's end.
func (w *window) down(n uint64, in bool) (count uint64) {
	most := min(n+1, windowLen-64-min(w.newest-n, windowLen-64))
	for count < most {
		word := w.bits[(n-count)/64%(windowLen/64)] << (63 - (n-count)%64)
		if in {
			word = ^word
		}
		here := (n-count)%64 + 1
		if zeros := uint64(bits.LeadingZeros64(word)); zeros < here { //nolint:gosec // at most 64
			return min(count+zeros, most)
		}
		count += here
	}
	return most
}
