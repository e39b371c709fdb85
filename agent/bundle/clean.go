package bundle

import (
	"bytes"
	"encoding/json"
	"regexp"
)

// Removed stands where a secret was.
const Removed = "REMOVED"

// secret is what no bundle may have, and what stands there instead.
type secret struct {
	find *regexp.Regexp
	with string
}

// secrets are found in any line of text. They remove too much rather than too little: a password may hold @, / and quotes.
var secrets = []secret{ //nolint:gochecknoglobals // a constant
	{regexp.MustCompile(`(?i)([a-z][a-z0-9+.-]*://).*@`), "${1}" + Removed + "@"}, // user and password of a URL
	{regexp.MustCompile(`[^\s:"'=]+:(?:[^\s/]|/[^/]).*@`), Removed + "@"},         // the same without a scheme
	{regexp.MustCompile(`([?&][\w.~-]+=)[^\s&"']+`), "${1}" + Removed},            // a URL's query
	{regexp.MustCompile(`\beyJ[\w-]+\.[\w-]+(\.[\w-]*)?`), Removed},               // a JSON Web Token
	{regexp.MustCompile(`(?i)\b(bearer|basic|authorization\s*[:=])[ \t]+[^\s"',][^\n"']*`), "${1} " + Removed},
}

var (
	privateKey = secret{regexp.MustCompile(`(?s)(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)`), "${1}" + Removed}
	// secretKey is a key whose value is a secret: group 1 is up to the key, 3 the value.
	secretKey = regexp.MustCompile(`(?i)^(.*?)([\w.-]*(?:(?:passw|passphrase|pwd|secret|token|credential|api[_-]?key|` +
		`private[_-]?key|access[_-]?key|key-data|psk)[\w.-]*|auth)["']?[ \t]*[:=][ \t]*)(.*)$`)
	filePath = regexp.MustCompile(`^(/[A-Za-z0-9._-]+){2,}(:.*)?$`)
)

// Clean removes secrets from text, and says how many there were. Below a key that promises a secret nothing stays that
// is indented deeper, nor a list.
func Clean(text []byte) (clean []byte, n int) {
	n += len(privateKey.find.FindAllIndex(text, -1))
	text = privateKey.find.ReplaceAll(text, []byte(privateKey.with))
	below := -1 // the column of the secret key above, if there is one
	for line := range bytes.Lines(text) {
		body := bytes.TrimRight(line, "\r\n")
		end := line[len(body):]
		indent := len(body) - len(bytes.TrimLeft(body, " \t"))
		if below >= 0 && (indent > below || indent == below && bytes.HasPrefix(body[indent:], []byte("-"))) && indent < len(body) {
			clean = append(append(append(clean, body[:indent]...), Removed...), end...)
			n++
			continue
		}
		if indent < len(body) {
			below = -1
		}
		if m := secretKey.FindSubmatchIndex(body); m != nil && !filePath.Match(body[m[6]:m[7]]) {
			below = len(body) - len(bytes.TrimLeft(body, " \t-"))
			body = append(bytes.Clone(body[:m[6]]), Removed...)
			n++
		}
		for _, s := range secrets {
			n += len(s.find.FindAllIndex(body, -1))
			body = s.find.ReplaceAll(body, []byte(s.with))
		}
		clean = append(append(clean, body...), end...)
	}
	return clean, n
}

// cleanStrings removes secrets from the strings of a JSON value that the agent itself made: the names of its fields promise
// none.
func cleanStrings(v any, n *int) any {
	switch v := v.(type) {
	case map[string]any:
		for name := range v {
			v[name] = cleanStrings(v[name], n)
		}
	case []any:
		for i := range v {
			v[i] = cleanStrings(v[i], n)
		}
	case string:
		out, removed := Clean([]byte(v))
		*n += removed
		return string(out)
	}
	return v
}

// made is v as indented JSON, without secrets.
func made(v any) (clean []byte, n int) {
	raw, err := json.Marshal(v)
	if err != nil {
		return []byte(err.Error()), 0
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return []byte(err.Error()), 0
	}
	clean, err = json.MarshalIndent(cleanStrings(tree, &n), "", "  ")
	if err != nil {
		return []byte(err.Error()), 0
	}
	return clean, n
}
