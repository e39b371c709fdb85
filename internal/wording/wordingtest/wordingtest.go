// Package wordingtest has words that a hostile machine may say, and checks what becomes of them.
package wordingtest

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// Hostile clears a screen, writes a line of its own, reverses what follows, is no UTF-8, and has 64 KiB.
func Hostile() string {
	return "\x1b[2J\x1b]0;title\x07\r\nbroken: \u202e\u2066\u200b\u2028\x9b\x00\xff" + strings.Repeat("\u202eé\n", 13<<10)
}

// Fill puts text into all fields of what v points to, two elements into its slices; not into fields that skip names (TYPE.FIELD).
func Fill(v any, text string, skip ...string) { fill(reflect.ValueOf(v), text, skip) }

func fill(v reflect.Value, text string, skip []string) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		fill(v.Elem(), text, skip)
	case reflect.Struct:
		for i := range v.NumField() {
			if name := v.Type().Name() + "." + v.Type().Field(i).Name; v.Field(i).CanSet() && !slices.Contains(skip, name) {
				fill(v.Field(i), text, skip)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), text, skip)
		}
	case reflect.String:
		v.SetString(text)
	default:
	}
}

// Check fails the test for each text in v that has more than so many bytes, or what no operator's screen should get. It returns
// how many texts there are.
func Check(t testing.TB, v any, most int) int {
	t.Helper()
	return check(t, reflect.ValueOf(v), "", most)
}

func check(t testing.TB, v reflect.Value, at string, most int) (n int) {
	t.Helper()
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			n = check(t, v.Elem(), at, most)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			n += check(t, v.Field(i), at+"."+v.Type().Field(i).Name, most)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			n += check(t, v.Index(i), at, most)
		}
	case reflect.String:
		if v.Len() > 0 {
			n = 1
		}
		if bad := Bad(v.String(), most); bad != "" {
			t.Errorf("%s %s", at, bad)
		}
	default:
	}
	return n
}

// Bad says what is wrong with a text for a screen, "" if nothing is.
func Bad(text string, most int) string {
	switch {
	case len(text) > most:
		return "is too long"
	case !utf8.ValidString(text):
		return "is not UTF-8"
	case strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) }):
		return "has control characters"
	}
	return ""
}
