package identity

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestLibraryLogIsDetail(t *testing.T) {
	for _, c := range []struct {
		level slog.Level
		want  bool
	}{{slog.LevelInfo, false}, {slog.LevelDebug, true}} {
		var out bytes.Buffer
		h := demoted{slog.NewTextHandler(&out, &slog.HandlerOptions{Level: c.level})}
		slog.New(h).With("a", 1).WithGroup("g").Error("closed", "b", 2)
		slog.New(h).Debug("packet")
		text := out.String()
		if have := strings.Contains(text, "level=DEBUG msg=closed a=1 g.b=2"); have != c.want {
			t.Errorf("at level %s: %q", c.level, text)
		}
		if strings.Contains(text, "packet") {
			t.Errorf("at level %s the library's own details are logged: %q", c.level, text)
		}
	}
}
