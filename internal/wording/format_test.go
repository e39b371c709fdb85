package wording

import (
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestFormats(t *testing.T) {
	for got, want := range map[string]string{
		Number(65536):               "65,536",
		Number(uint64(1 << 62)):     "unlimited",
		Number(uint64(1<<64 - 1)):   "unlimited",
		Count(1, "relay"):           "1 relay",
		Count(0, "relay"):           "0 relays",
		Count(2, "address"):         "2 addresses",
		Count(1200, "query"):        "1,200 queries",
		Count(2, "is", "are"):       "2 are",
		Bytes(999):                  "999 B",
		Bytes(1500):                 "1.5 kB",
		Bytes(uint64(82_854_982)):   "83 MB",
		Bytes(int64(math.MaxInt64)): "unlimited",
		Bytes(-1):                   "0 B",
		List(nil):                   "none",
		List([]string{"a"}):         "a",
		Sprintf("%v of %v, %d at %s", 10*time.Minute, []string{"a", "b"}, 3, []byte("x")): "10m of a, b, 3 at x",
		Sprintf("%v %v", io.EOF, 1):                "EOF 1",
		List([]string{"a", "b"}):                   "a and b",
		List([]string{"a", "b", "c"}):              "a, b and c",
		Most([]string{"a", "b", "c", "d", "e"}, 2): "a, b and 3 more",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestDuration(t *testing.T) {
	const day = 24 * time.Hour
	for d, want := range map[time.Duration]string{
		0:                              "0s",
		123456:                         "123µs",
		350*time.Millisecond + 987654:  "351ms",
		1540 * time.Millisecond:        "1.5s",
		45 * time.Second:               "45s",
		3*time.Minute + 12*time.Second: "3m12s",
		10 * time.Minute:               "10m",
		time.Hour + 59*time.Second:     "1h",
		4*time.Hour + 7*time.Minute:    "4h7m",
		day:                            "1d",
		3*day + 2*time.Hour:            "3d2h",
		12*day + 2*time.Hour:           "12d",
		-90 * time.Second:              "-1m30s",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

func TestWrap(t *testing.T) {
	for _, c := range []struct {
		text  string
		width int
		want  []string
	}{
		{"a bb ccc", 4, []string{"a bb", "ccc"}},
		{"abcdefgh ij", 4, []string{"abcd", "efgh", "ij"}},
		{"→→→→ x", 4, []string{"→→→→", "x"}},
		{"  a   b ", 0, []string{"a b"}},
		{"", 4, nil},
	} {
		if got := Wrap(c.text, c.width); !slices.Equal(got, c.want) {
			t.Errorf("%q at %d: %q", c.text, c.width, got)
		}
	}
	if got := Hang("  → ", "start the agent there", 14); !slices.Equal(got, []string{"  → start the", "    agent", "    there"}) {
		t.Errorf("%q", got)
	}
	if got := Hang("  ", "a b", 0); !slices.Equal(got, []string{"  a b"}) {
		t.Errorf("%q", got)
	}
}

func TestElide(t *testing.T) {
	for _, c := range []struct {
		text  string
		width int
		want  string
	}{
		{"connection refused by all", 25, "connection refused by all"},
		{"connection refused by all", 20, "connection refused…"},
		{"connection refused, by all", 20, "connection refused…"},
		{"12D3KooWabcdefgh", 8, "12D3Koo…"},
		{"a verylongwordindeed", 10, "a verylon…"},
		{"anything", 0, "anything"},
	} {
		if got := Elide(c.text, c.width); got != c.want {
			t.Errorf("%q at %d: %q, want %q", c.text, c.width, got, c.want)
		}
	}
	for width := 1; width < 40; width++ {
		if got := Elide(strings.Repeat("wörd ", 9), width); utf8.RuneCountInString(got) > width {
			t.Errorf("%d: %q", width, got)
		}
	}
}

func TestReflow(t *testing.T) {
	const in = `A paragraph that is wider than this
screen. It stays one.

Flags:
      --state-dir string   where the key is (default
                           "/var")
  -h, --help               help

  prog run --now        # a comment
  prog run
  prog stop
`
	if got := Reflow(in, 26); !strings.HasPrefix(got, "A paragraph that is wider\nthan this screen. It stays\none.\n\nFlags:\n      --state-dir string") {
		t.Errorf("%s", got)
	}
	const at32 = `  # a comment
  prog run --now
  prog run
  prog stop
`
	if got := Reflow(in, 32); !strings.HasSuffix(got, at32) || !strings.Contains(got, "string   where\n"+strings.Repeat(" ", 27)+"the\n") {
		t.Errorf("%s", got)
	}
	if got := Reflow(in, 80); got != in {
		t.Errorf("what fits is changed:\n%s", got)
	}
}
