package logs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/multiformats/go-multiaddr"
	"go.uber.org/goleak"

	"edgemesh/internal/wording/wordingtest"
)

// A person reads the text: no 10m0s, no [a b], nothing of what is not there.
func TestReadable(t *testing.T) {
	var b bytes.Buffer
	log, _ := New(&b, Config{}, false)
	log.Info("x", "after", 10*time.Minute, "relays", []string{"a", "b"}, "dropped", []string{}, "err", nil, "pods",
		[]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, "key", []byte("k"), "cause", errors.Join(errors.New("one")), "addr", netip.MustParseAddr("::1"), "over", multiaddr.StringCast("/ip4/192.0.2.1/tcp/1"))
	if _, got, _ := strings.Cut(b.String(), "msg="); got != "x after=10m relays=\"a, b\" pods=10.0.0.0/8 key=\"k\" cause=one addr=::1 over=/ip4/192.0.2.1/tcp/1\n" {
		t.Errorf("%s", got)
	}
	b.Reset()
	log, _ = New(&b, Config{Format: "json"}, false)
	log.Info("x", "after", time.Second, "relays", []string{"a"})
	if !strings.Contains(b.String(), `"after":1000000000,"relays":["a"]`) {
		t.Errorf("%s", &b)
	}
}

func TestFormats(t *testing.T) {
	var b bytes.Buffer
	log, level := New(&b, Config{Format: "json", Level: "warn"}, false)
	log.Info("hidden")
	log.Warn("seen", "key", 1)
	var line map[string]any
	if err := json.Unmarshal(b.Bytes(), &line); err != nil || line["msg"] != "seen" || line["key"] != 1.0 {
		t.Errorf("%v: %s", err, &b)
	}
	if level.Level() != slog.LevelWarn {
		t.Errorf("level %v", level)
	}
	b.Reset()
	log, _ = New(&b, Config{}, true)
	log.Debug("detail")
	if !strings.Contains(b.String(), "level=DEBUG msg=detail") {
		t.Errorf("verbose text: %s", &b)
	}
	for _, c := range []Config{{}, {"json", "debug"}, {"text", "error"}} {
		if f, l := c.Check(); f+l != "" {
			t.Errorf("%+v is refused: %s %s", c, f, l)
		}
	}
	if f, l := (Config{"xml", "loud"}).Check(); !strings.Contains(f, "text, json") || !strings.Contains(l, "debug, info") {
		t.Errorf("bad values: %q, %q", f, l)
	}
}

// The level changes while the program runs, by its socket alone, and the change is in the log.
func TestSwitch(t *testing.T) {
	defer goleak.VerifyNone(t)
	var b bytes.Buffer
	log, level := New(&b, Config{Level: "error"}, false)
	socket := filepath.Join(t.TempDir(), "s")
	for range 2 { // the second one replaces a socket that was left
		stop, err := Serve(socket, level, log, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	for _, c := range []struct{ set, want string }{{"", "error"}, {"debug", "debug"}, {"", "debug"}, {"warn", "warn"}} {
		if is, err := Ask(t.Context(), socket, c.set); err != nil || is != c.want {
			t.Errorf("set %q: %q, %v; want %q", c.set, is, err, c.want)
		}
	}
	if _, err := Ask(t.Context(), socket, "loud"); err == nil || !strings.Contains(err.Error(), "not one of debug") {
		t.Errorf("an invalid level: %v", err)
	}
	if level.Level() != slog.LevelWarn || strings.Count(b.String(), "log level changed") != 2 {
		t.Errorf("level %v, log:\n%s", level, &b)
	}
	if _, err := Ask(t.Context(), socket+"x", "debug"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a program: %v", err)
	}
}

// What others say fills no log, and reverses none of its lines.
func TestLogOfALiar(t *testing.T) {
	for _, format := range Formats {
		var b strings.Builder
		log, _ := New(&b, Config{Format: format}, false)
		log.Warn("dial", "err", fmt.Errorf("closed by the peer: %s", wordingtest.Hostile()), "why", "\u202etxet")
		line := strings.TrimSuffix(b.String(), "\n")
		if bad := wordingtest.Bad(line, maxError+512); bad != "" {
			t.Errorf("%s: a line of %d bytes %s", format, len(line), bad)
		}
		if !strings.Contains(line, "closed by the peer") {
			t.Errorf("%s: %s", format, line)
		}
	}
}

// An error whose Error panics, as a nil pointer in an interface, ends no program.
func TestLogOfANilPointer(t *testing.T) {
	for _, format := range Formats {
		var b strings.Builder
		log, _ := New(&b, Config{Format: format}, false)
		var none *net.OpError
		var broken *url.Error
		log.Warn("dial", "err", error(none), "too", error(broken))
		if !strings.Contains(b.String(), "dial") || !strings.Contains(b.String(), "nil") {
			t.Errorf("%s: %s", format, b.String())
		}
	}
}
