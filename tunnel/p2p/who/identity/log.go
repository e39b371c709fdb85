package identity

import (
	"context"
	"log/slog"

	"github.com/libp2p/go-libp2p/gologshim"
)

// LogLibrary sends libp2p's own log to log, as debug records: what libp2p calls an error is mostly a connection that a
// peer has closed, and what matters to an operator is reported by us, with its meaning. Call it before the first host is
// made.
func LogLibrary(log *slog.Logger) { gologshim.SetDefaultHandler(demoted{log.Handler()}) }

// demoted makes every record a debug record.
type demoted struct{ to slog.Handler }

var _ slog.Handler = demoted{}

func (d demoted) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo && d.to.Enabled(ctx, slog.LevelDebug)
}

func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return d.to.Handle(ctx, r)
}

func (d demoted) WithAttrs(a []slog.Attr) slog.Handler { return demoted{d.to.WithAttrs(a)} }

func (d demoted) WithGroup(name string) slog.Handler { return demoted{d.to.WithGroup(name)} }
