package config

import (
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// A key that is read is described, also one inside another.
func TestHelpNamesEveryKey(t *testing.T) {
	for _, key := range keys(reflect.TypeFor[document]()) {
		if !regexp.MustCompile(`\b` + key + `\b`).MatchString(Help()) {
			t.Errorf("the help does not name %s", key)
		}
	}
}

func keys(t reflect.Type) []string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	var out []string
	if t.Kind() == reflect.Struct {
		for f := range t.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name != "" && name != "-" {
				out = append(out, name)
			}
			if name != "-" {
				out = append(out, keys(f.Type)...)
			}
		}
	}
	return out
}
