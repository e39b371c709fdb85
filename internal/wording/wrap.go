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

// Reflow is a help text in lines of at most width columns. Paragraphs and the items of lists, each with what continues below
// its last column, are broken again where one of their lines is longer; commands continue behind a backslash.
func Reflow(text string, width int) string {
	var out []string
	var part []string  // lines of one paragraph or item
	at, begins := 0, 0 // where part continues, and where its first line begins
	end := func() {
		if slices.ContainsFunc(part, func(l string) bool { return utf8.RuneCountInString(l) > width }) {
			part = reflowed(part, at, width)
		}
		out, part = append(out, part...), nil
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(strings.ReplaceAll(line, "\t", "    "), " \n")
		indent := len(line) - len(strings.TrimLeft(line, " "))
		if len(part) == 0 || line == "" || part[0] == "" || indent != at || at == begins && at > 0 {
			end()
			at, begins = hang(line, indent), indent
		}
		part = append(part, line)
	}
	end()
	return strings.Join(out, "\n") + "\n"
}

// hang is where an item continues: at its last column, or where it begins.
func hang(line string, indent int) int {
	if i := strings.LastIndex(line, "  "); indent > 0 && i > indent {
		return utf8.RuneCountInString(line[:i+2])
	}
	return indent
}

// reflowed are the lines of one paragraph or item, that continues at a column.
func reflowed(part []string, at, width int) []string {
	first := []rune(part[0])
	head, body := string(first[:min(at, len(first))]), string(first[min(at, len(first)):])
	for _, line := range part[1:] {
		body += " " + strings.TrimSpace(line)
	}
	if comment, is := strings.CutPrefix(body, "# "); is { // of a command
		indent := head[:len(head)-len(strings.TrimLeft(head, " "))]
		return append(Hang(indent+"# ", comment, width), strings.TrimRight(head, " "))
	}
	return Hang(head, body, width)
}
