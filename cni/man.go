package main

import (
	"os"
	"path/filepath"
	"strings"

	"edgemesh/internal/version"
)

// manPage is the man page in roff (man(7)), made from the text of help.
func manPage() string {
	synopsis, rest, _ := strings.Cut(usage, "\n\n")
	options, examples, _ := strings.Cut(rest, "\n\nExamples:\n")
	var b strings.Builder
	section := func(title, text string) {
		b.WriteString(".SH " + title + "\n" + text + "\n")
	}
	b.WriteString(`.TH EDGEMESH-CNI 1 "" "edgemesh-cni ` + roff(version.Number()) + `" EdgeMesh` + "\n")
	section("NAME", `edgemesh-cni \- CNI plugin of the EdgeMesh pod network`)
	section("SYNOPSIS", verbatim(strings.TrimPrefix(synopsis, "Usage:\n")))
	section("DESCRIPTION", "A container runtime calls edgemesh-cni with CNI_COMMAND set. An operator calls it with arguments: ipam shows and\n"+
		"repairs the addresses of pods.")
	section("OPTIONS", verbatim(options))
	section("EXIT STATUS", "0: done; 1: failed; 2: the command line is wrong.")
	section("EXAMPLES", verbatim(examples))
	section("SEE ALSO", `edgemesh\-agent(1)`)
	return b.String()
}

// verbatim is text with its line breaks.
func verbatim(text string) string {
	return ".nf\n" + roff(strings.Trim(text, "\n")) + "\n.fi"
}

// roff escapes what roff would take for its own: backslashes, hyphens, and lines that begin with a dot or a quote.
func roff(text string) string {
	lines := strings.Split(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

// writeMan writes the man page into a directory, which it makes if it does not exist.
func writeMan(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "edgemesh-cni.1"), []byte(manPage()), 0o644)
}
