package logs

import (
	"fmt"
	"log/slog"
	"reflect"
	"strings"

	"edgemesh/internal/wording"
)

// readable has durations and lists in a text log as in all other output: 10m in place of 10m0s, "a, b" in place of [a b]. A list
// without elements, and an error that is nil, are left out. A JSON log keeps the values, for programs.
func readable(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Resolve(); v.Kind() {
	case slog.KindDuration:
		return slog.String(a.Key, wording.Duration(v.Duration()))
	case slog.KindAny:
		all := reflect.ValueOf(v.Any())
		if !all.IsValid() {
			return slog.Attr{}
		}
		if k := all.Kind(); k != reflect.Slice && k != reflect.Array || all.Type().Elem().Kind() == reflect.Uint8 {
			return a // also bytes and addresses
		}
		if _, is := v.Any().(error); is {
			return a
		}
		if all.Len() == 0 {
			return slog.Attr{}
		}
		texts := make([]string, all.Len())
		for i := range texts {
			texts[i] = fmt.Sprint(all.Index(i).Interface())
		}
		return slog.String(a.Key, strings.Join(texts, ", "))
	}
	return a
}
