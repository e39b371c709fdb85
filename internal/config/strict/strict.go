// Package strict reads YAML documents that people write by hand: every key must be
// known, spelled in the right case and present once, every value must have the right
// type, and an error says where.
package strict

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"sigs.k8s.io/yaml"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wording"
)

// Unmarshal decodes the one YAML document in data into out, a pointer to a
// struct with json tags. Problems are added to bad; out is set only when there
// are none.
func Unmarshal(data []byte, out any, bad *mesh.Invalid) {
	before := len(bad.Problems)
	if line := secondDocument(data); line > 0 {
		bad.Addf("", "line %d begins a second YAML document; only one is allowed", line)
		return
	}
	j, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		bad.Addf("", "%s", readable(err))
		return
	}
	dec := json.NewDecoder(bytes.NewReader(j))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		bad.Addf("", "%s", readable(err))
		return
	}
	check(bad, "", tree, reflect.TypeOf(out).Elem())
	if len(bad.Problems) > before {
		return
	}
	if err := json.Unmarshal(j, out); err != nil {
		bad.Addf("", "%s", readable(err))
	}
}

// secondDocument returns the number of the line that begins another document, or 0:
// the decoder would read the first document and ignore the others.
func secondDocument(data []byte) int {
	content := false
	n := 0
	for line := range bytes.Lines(data) {
		n++
		marker := bytes.HasPrefix(line, []byte("---")) && (len(bytes.TrimSpace(line[3:])) == 0 || line[3] == ' ' || line[3] == '\t')
		if marker && content {
			return n
		}
		text := bytes.TrimSpace(line)
		if marker || len(text) > 0 && text[0] != '#' && text[0] != '%' {
			content = true
		}
	}
	return 0
}

// readable removes the libraries' prefixes and line breaks from err.
func readable(err error) string {
	s := err.Error()
	for _, prefix := range []string{"error converting YAML to JSON: ", "error unmarshaling JSON: ", "yaml: ", "unmarshal errors:"} {
		s = strings.TrimPrefix(s, prefix)
	}
	return "not valid YAML: " + wording.OneLine(s)
}

// check compares a decoded value with the type it is meant for. Null means absent.
func check(bad *mesh.Invalid, field string, v any, t reflect.Type) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if v == nil {
		return
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		m, ok := v.(map[string]any)
		_, text := v.(string)
		switch {
		case text && reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()): // it reads a text, too
		case !ok:
			bad.Addf(field, "must be a mapping of keys to values, not %s", kind(v))
		case t.Kind() == reflect.Struct:
			checkStruct(bad, field, m, t)
		case t.Elem().Kind() != reflect.Interface: // free values: their user checks them
			for _, k := range slices.Sorted(maps.Keys(m)) {
				check(bad, field+"."+k, m[k], t.Elem())
			}
		}
	case reflect.Slice:
		l, ok := v.([]any)
		if !ok {
			bad.Addf(field, "must be a list, not %s", kind(v))
			return
		}
		for i, e := range l {
			check(bad, fmt.Sprintf("%s[%d]", field, i), e, t.Elem())
		}
	case reflect.String:
		switch v.(type) {
		case string:
		case []any, map[string]any:
			bad.Addf(field, "must be a string, not %s", kind(v))
		default:
			bad.Addf(field, "must be a string, not %s; put it in quotes", kind(v))
		}
	case reflect.Bool:
		if _, ok := v.(bool); !ok {
			bad.Addf(field, "must be true or false, not %s", kind(v))
		}
	case reflect.Int:
		n, ok := v.(json.Number)
		if !ok {
			bad.Addf(field, "must be a whole number, not %s", kind(v))
		} else if _, err := n.Int64(); err != nil {
			bad.Addf(field, "%s is not a whole number", n)
		}
	case reflect.Interface: // a free value: its user checks it
	default:
		panic(fmt.Sprintf("strict: no rule for type %v of %s", t, field))
	}
}

func checkStruct(bad *mesh.Invalid, field string, m map[string]any, t reflect.Type) {
	fields := make(map[string]reflect.Type, t.NumField())
	names := make([]string, 0, t.NumField())
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue // embedded, or not of the document
		}
		fields[name] = f.Type
		names = append(names, name)
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		path := k
		if field != "" {
			path = field + "." + k
		}
		if ft, ok := fields[k]; ok {
			check(bad, path, m[k], ft)
			continue
		}
		if i := slices.IndexFunc(names, func(n string) bool { return strings.EqualFold(n, k) }); i >= 0 {
			bad.Addf(path, "unknown field; did you mean %s?", names[i])
			continue
		}
		bad.Addf(path, "unknown field; known here: %s", strings.Join(names, ", "))
	}
}

func kind(v any) string {
	switch v := v.(type) {
	case map[string]any:
		return "a mapping"
	case []any:
		return "a list"
	case json.Number:
		return "the number " + v.String()
	case bool:
		return fmt.Sprintf("the boolean %t", v)
	default:
		return "a string"
	}
}

// ReadFile returns the content of a regular file of at most max bytes. Errors
// name the path.
func ReadFile(path string, max int64) ([]byte, error) {
	f, err := Open(path, max)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, max+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if int64(len(data)) > max {
		return nil, fmt.Errorf("%s: larger than %d bytes", path, max)
	}
	return data, nil
}

// Open opens a regular file of at most max bytes. Errors name the path.
func Open(path string, max int64) (*os.File, error) {
	// Without O_NONBLOCK, opening a FIFO would block.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	switch {
	case err != nil:
	case !fi.Mode().IsRegular():
		err = fmt.Errorf("%s: not a regular file (%s)", path, fi.Mode().Type())
	case fi.Size() > max:
		err = fmt.Errorf("%s: larger than %d bytes", path, max)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
