package strict

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"edgemesh/internal/membership/mesh"
)

type doc struct {
	Name  string  `json:"name"`
	Count int     `json:"count"`
	Live  bool    `json:"live"`
	Dir   *string `json:"dir"`
	List  []item  `json:"list"`
	Inner *item   `json:"inner"`
}

type item struct {
	Key string `json:"key"`
}

func TestUnmarshal(t *testing.T) {
	for name, text := range map[string]string{
		"mapping":  "name: a\ncount: 3\nlive: true\ndir: \"\"\nlist: [{key: x}, {key: \"7\"}]\ninner: {key: z}\n",
		"comments": "# first\n%YAML 1.1\n---\nname: a # b\n",
		"empty":    "",
		"nulls":    "name:\nlist:\ninner: null\n",
		"json":     `{"name": "a"}`,
	} {
		t.Run(name, func(t *testing.T) {
			var bad mesh.Invalid
			var d doc
			Unmarshal([]byte(text), &d, &bad)
			if err := bad.Err(); err != nil {
				t.Errorf("refused: %v", err)
			}
			if name == "mapping" && (d.Name != "a" || d.Count != 3 || !d.Live || d.Dir == nil || len(d.List) != 2 || d.List[1].Key != "7" || d.Inner.Key != "z") {
				t.Errorf("got %+v", d)
			}
		})
	}
}

func TestUnmarshalRefuses(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"unknown", "nmae: a", "nmae: unknown field; known here: name, count, live, dir, list, inner"},
		{"unknown inside", "list: [{key: a}, {kye: b}]", "list[1].kye: unknown field; known here: key"},
		{"case", "Name: a", "Name: unknown field; did you mean name?"},
		{"twice", "name: a\nname: b", `line 2: key "name" already set`},
		{"number for string", "name: 007", "name: must be a string, not the number 7; put it in quotes"},
		{"boolean for string", "inner: {key: no}", "inner.key: must be a string, not the boolean false"},
		{"list for string", "name: [a]", "name: must be a string, not a list\n"},
		{"mapping for string", "name: {a: b}", "name: must be a string, not a mapping\n"},
		{"string for list", "list: a", "list: must be a list, not a string"},
		{"list for mapping", "inner: [a]", "inner: must be a mapping of keys to values, not a list"},
		{"scalar for mapping", "list: [a]", "list[0]: must be a mapping"},
		{"scalar document", "hello", "must be a mapping of keys to values, not a string"},
		{"fraction", "count: 1.5", "count: 1.5 is not a whole number"},
		{"overflow", "count: 99999999999999999999", "count: "},
		{"string for number", `count: "3"`, "count: must be a whole number, not a string"},
		{"string for boolean", `live: "true"`, "live: must be true or false"},
		{"torn", "list: [{key: a}, {ke", "not valid YAML"},
		{"tab", "inner:\n\tkey: a", "not valid YAML"},
		{"zeros", "\x00\x00\x00", "not valid YAML"},
		{"two documents", "name: a\n---\nname: b\n", "line 2 begins a second YAML document"},
		{"alias bomb", "name: &a [x,x,x,x,x,x,x,x,x]\nlist: [*b]", "not valid YAML"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var bad mesh.Invalid
			var d doc
			Unmarshal([]byte(c.text), &d, &bad)
			err := bad.Err()
			if err == nil || !strings.Contains(err.Error()+"\n", c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
		})
	}
}

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := ReadFile(path, 5); err != nil || string(b) != "12345" {
		t.Errorf("%q, %v", b, err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]string{
		path:                       "larger than 4 bytes",
		dir:                        "not a regular file",
		fifo:                       "not a regular file",
		filepath.Join(dir, "none"): "no such file",
	} {
		if _, err := ReadFile(p, 4); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), p) {
			t.Errorf("%s: error %v, want %q with the path", p, err, want)
		}
	}
}
