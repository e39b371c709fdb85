package wording

import (
	"io"
	"unicode/utf8"
)

// Writer passes on what is written, made safe by PrintableLines. It keeps back an incomplete character only.
type Writer struct {
	To   io.Writer
	rest []byte // the beginning of a character
}

func (w *Writer) Write(p []byte) (int, error) {
	b := append(w.rest, p...)
	end := len(b)
	for i := max(0, len(b)-utf8.UTFMax); i < len(b); i++ {
		if utf8.RuneStart(b[i]) && !utf8.FullRune(b[i:]) {
			end = i
			break
		}
	}
	w.rest = append([]byte(nil), b[end:]...)
	if _, err := io.WriteString(w.To, PrintableLines(string(b[:end]))); err != nil {
		return 0, err
	}
	return len(p), nil
}
