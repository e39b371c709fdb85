package wording

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
)

// Unlimited is what stands for a number without a bound.
const Unlimited = "unlimited"

// unlimited is from where on a number is no count of anything: 2^62 and 2^63 stand for "no bound".
const unlimited = 1 << 62

// Integer is a number that can be counted.
type Integer interface {
	~int | ~int64 | ~uint64 | ~uint32 | ~int32
}

// Number is n with its thousands apart: 65,536; a number that is no count is unlimited.
func Number[N Integer](n N) string {
	if n > 0 && uint64(n) >= unlimited {
		return Unlimited
	}
	return humanize.Comma(int64(n))
}

// Count is "1 relay" or "2 relays". many is for a word whose plural is not one, or one with an s: "2 addresses".
func Count[N Integer](n N, one string, many ...string) string {
	if n == 1 {
		return "1 " + one
	}
	return Number(n) + " " + english.PluralWord(2, one, strings.Join(many, ""))
}

// Bytes is n with a decimal unit: 999 B, 1.5 kB, 83 MB.
func Bytes[N Integer](n N) string {
	if n > 0 && uint64(n) >= unlimited {
		return Unlimited
	}
	return humanize.Bytes(uint64(max(n, 0)))
}

// ShortID is the end of a peer ID, the part that differs.
func ShortID(id string) string {
	const keep = 8
	if len(id) <= keep {
		return id
	}
	return "…" + id[len(id)-keep:]
}

// Texts are the texts of all; a list in JSON, also of none.
func Texts[T fmt.Stringer](all []T) []string {
	out := make([]string, len(all))
	for i, x := range all {
		out[i] = x.String()
	}
	return out
}

// List is "a, b and c"; "none" where there is nothing.
func List(all []string) string {
	return cmp.Or(english.WordSeries(all, "and"), "none")
}

// Most is List of the first most of all, with the number of the others: "a, b and 3 more".
func Most(all []string, most int) string {
	if len(all) <= most {
		return List(all)
	}
	return List(append(slices.Clone(all[:most]), Number(len(all)-most)+" more"))
}

// Duration is d in at most two units: 350ms, 1.5s, 45s, 3m12s, 10m, 4h7m, 3d2h, 12d.
func Duration(d time.Duration) string {
	const day, short = 24 * time.Hour, 10 * time.Second
	switch {
	case d < 0:
		return "-" + Duration(-d)
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < short:
		return d.Round(time.Second / 10).String()
	}
	units := []struct {
		name string
		unit time.Duration
	}{{"d", day}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}}
	for i, u := range units {
		if d < u.unit {
			continue
		}
		n := d / u.unit
		out := fmt.Sprintf("%d%s", n, u.name)
		if i+1 < len(units) && (i > 0 || n < 10) {
			if rest := d % u.unit / units[i+1].unit; rest > 0 {
				out += fmt.Sprintf("%d%s", rest, units[i+1].name)
			}
		}
		return out
	}
	return ""
}

// Sprintf is fmt.Sprintf, with durations and lists as Value has them.
func Sprintf(format string, args ...any) string {
	out := slices.Clone(args)
	for i := range out {
		if text, is := Value(out[i]); is {
			out[i] = text
		}
	}
	return fmt.Sprintf(format, out...)
}

// Value is a duration, or a list of anything but bytes, as a person reads it; an empty list is "". False: v is neither, or
// has a text of its own.
func Value(v any) (string, bool) {
	switch v := v.(type) {
	case time.Duration:
		return Duration(v), true
	case error, fmt.Stringer:
		return "", false
	}
	all := reflect.ValueOf(v)
	if !all.IsValid() || all.Kind() != reflect.Slice || all.Type().Elem().Kind() == reflect.Uint8 {
		return "", false
	}
	texts := make([]string, all.Len())
	for i := range texts {
		texts[i] = fmt.Sprint(all.Index(i).Interface())
	}
	return strings.Join(texts, ", "), true
}
