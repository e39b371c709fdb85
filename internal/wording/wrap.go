package wording

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Wrap breaks text between words into lines of at most width columns; a longer word is cut. A width of 0 or less is no bound.
func Wrap(text string, width int) []string {
	words := strings.Fields(text)
	if width <= 0 {
		return []string{strings.Join(words, " ")}
	}
	var lines []string
	line := []rune{}
	for _, field := range words {
		word := []rune(field)
		if len(line) > 0 && len(line)+1+len(word) <= width {
			line = append(append(line, ' '), word...)
			continue
		}
		if len(line) > 0 {
			lines = append(lines, string(line))
		}
		for len(word) > width {
			lines, word = append(lines, string(word[:width])), word[width:]
		}
		line = slices.Clone(word)
	}
	if len(line) > 0 {
		lines = append(lines, string(line))
	}
	return lines
}

// Hang is text in lines of at most width columns: the first one after first, the others below its first word. A width of 0 or
// less is no bound.
func Hang(first, text string, width int) []string {
	indent := utf8.RuneCountInString(first)
	if width > 0 {
		width = max(width-indent, 1)
	}
	lines := Wrap(text, width)
	for i := range lines {
		if i == 0 {
			lines[i] = first + lines[i]
		} else {
			lines[i] = strings.Repeat(" ", indent) + lines[i]
		}
	}
	return lines
}

// Elide is the beginning of text in at most width columns, cut between words where the last one is not most of it. A width of
// 0 or less is no bound.
func Elide(text string, width int) string {
	r := []rune(text)
	if width <= 0 || len(r) <= width {
		return text
	}
	kept := string(r[:width-1])
	if r[width-1] != ' ' {
		if i := strings.LastIndexByte(kept, ' '); i > width/2 {
			kept = kept[:i]
		}
	}
	return strings.TrimRight(kept, " ,;:") + "…"
}
