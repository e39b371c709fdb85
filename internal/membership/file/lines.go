package file

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"edgemesh/internal/config/strict"
	"edgemesh/internal/membership/mesh"
)

// errOtherForm means that a document has to be read as YAML, whole: not all of its nodes are written a line each, or
// something else in it may mean more than it seems to. It is no error of the document's.
var errOtherForm = errors.New("not a node a line")

// parseLines reads a document of the form in which large ones are written, a node a line:
//
//	podCIDRs: [10.0.0.0/8]
//	nodes:
//	- {name: edge-1, peerID: 12D3KooW…, podCIDRs: [10.0.0.0/25], site: berlin}
//
// A YAML parser takes 200 µs and many kB for each. What is read here means the same to it, which a fuzz test holds; of
// everything else the error is errOtherForm. r is read once, and never in memory as a whole.
func parseLines(r io.Reader) (doc document, nodes []mesh.Node, err error) {
	var rest bytes.Buffer // everything but the nodes
	lines := bufio.NewReaderSize(r, 64<<10)
	indent, begun, inside, seen := -1, false, false, false // begun: there was a key
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return doc, nil, errOtherForm // too long, or unreadable, which the next reader says
		}
		last := err != nil
		text := bytes.TrimRight(line, " \n")
		body := bytes.TrimLeft(text, " ")
		item, isItem := bytes.CutPrefix(body, []byte("- {"))
		switch {
		case bytes.HasPrefix(body, []byte("#")) && !remark(body):
			return doc, nil, errOtherForm
		case (len(body) == 0 || body[0] == '#') && inside:
		case len(body) == 0 || body[0] == '#':
			rest.Write(append(bytes.Clone(text), '\n'))
		case inside && isItem && (indent < 0 || indent == len(text)-len(body)):
			indent = len(text) - len(body)
			n, ok := parseNode(string(item))
			if !ok {
				return doc, nil, errOtherForm
			}
			nodes = append(nodes, n)
		case string(text) == "nodes:" && !seen:
			begun, inside, seen = true, true, true
		case (inside || !begun) && (len(body) < len(text) || body[0] == '-'), !plain(body), bytes.HasPrefix(text, []byte("nodes")),
			rest.Len() > MaxWhole:
			return doc, nil, errOtherForm
		default:
			begun, inside = true, false
			rest.Write(append(bytes.Clone(text), '\n'))
		}
		if last {
			break
		}
	}
	var bad mesh.Invalid
	if strict.Unmarshal(rest.Bytes(), &doc, &bad); bad.Err() != nil || len(nodes) == 0 || doc.Nodes != nil {
		return doc, nil, errOtherForm // with the number of the line in the whole
	}
	return doc, nodes, nil
}

// plain reports whether a line says what it seems to: no quotes, text of several lines, references, types or second
// documents, and lists that end in the line in which they begin, comments aside.
func plain(line []byte) bool {
	said, comment, _ := bytes.Cut(line, []byte("#"))
	if !bytes.HasSuffix(said, []byte(" ")) && bytes.ContainsAny(comment, "[]") {
		return false // perhaps not
	}
	return !bytes.ContainsAny(line, "\"'|>&*!%@`\\\t\r?") && !bytes.HasPrefix(line, []byte("---")) && !bytes.HasPrefix(line, []byte("...")) &&
		bytes.Count(said, []byte("[")) == bytes.Count(said, []byte("]")) && !bytes.ContainsAny(line, "{}") && ascii(line)
}

// remark reports whether a comment is one to its end: YAML ends it at more than \n, and refuses what is no text.
func remark(line []byte) bool {
	return utf8.Valid(line) && !bytes.ContainsFunc(line, func(r rune) bool { return r != '\t' && !unicode.IsPrint(r) })
}

func ascii(line []byte) bool {
	return !bytes.ContainsFunc(line, func(r rune) bool { return r < ' ' || r > '~' })
}

// parseNode reads what follows "- {".
func parseNode(text string) (n mesh.Node, ok bool) {
	text, ok = strings.CutSuffix(text, "}")
	for ok && text != "" {
		var key, value string
		key, text, ok = strings.Cut(strings.TrimLeft(text, " "), ": ")
		if text = strings.TrimLeft(text, " "); !ok {
			break
		}
		if strings.HasPrefix(text, "[") {
			value, text, ok = strings.Cut(text[1:], "]")
			if text = strings.TrimLeft(text, " "); ok && text != "" {
				text, ok = strings.CutPrefix(text, ", ")
				ok = ok && strings.Trim(text, " ") != ""
			}
			ok = ok && key == "podCIDRs" && n.PodCIDRs == nil && parseBlocks(value, &n)
			continue
		}
		var more bool
		value, text, more = strings.Cut(text, ", ")
		value = strings.TrimRight(value, " ")
		if more && strings.Trim(text, " ") == "" {
			return n, false
		}
		switch {
		case key == "name" && n.Name == "" && isWord(value):
			n.Name = strings.Clone(value)
		case key == "site" && n.Site == "" && isWord(value):
			n.Site = strings.Clone(value)
		case key == "peerID" && n.PeerID == "" && len(value) == 52 && strings.HasPrefix(value, "12D3KooW"):
			var bad mesh.Invalid
			n.PeerID = peerID(&bad, "", value)
			ok = bad.Err() == nil
		default:
			return n, false
		}
	}
	return n, ok && n.Name != "" && n.PeerID != "" && n.PodCIDRs != nil
}

// isWord reports whether YAML takes a word without quotes for a string: not for a number, or one of its constants.
func isWord(s string) bool {
	switch s {
	case "", "true", "false", "null", "yes", "no", "on", "off", "y", "n":
		return false
	}
	return s[0] >= 'a' && s[0] <= 'z' &&
		!strings.ContainsFunc(s, func(r rune) bool { return r != '-' && r != '.' && (r < '0' || r > '9') && (r < 'a' || r > 'z') })
}

func parseBlocks(list string, n *mesh.Node) bool {
	count := strings.Count(list, ",") + 1
	n.PodCIDRs = make([]netip.Prefix, 0, count)
	for range count {
		var text string
		text, list, _ = strings.Cut(list, ",")
		text = strings.Trim(text, " ")
		p, err := netip.ParsePrefix(text)
		if err != nil || text[0] == ':' {
			return false
		}
		n.PodCIDRs = append(n.PodCIDRs, p)
	}
	return true
}
