package daemon

import "log/slog"

// Options are what the command line adds to the configuration.
type Options struct {
	Version     string
	PortableTUN bool   // do not use the kernel's offloads
	Wait        bool   // stand by while another agent runs here, instead of ErrLocked
	Revision    string // of the DaemonSet that this agent's pod is of; "": of none
	Log         *slog.Logger
	Level       *slog.LevelVar // of Log; nil: it cannot be changed
}

// level is that of the log; changing it has no effect where there is none.
func (o Options) level() *slog.LevelVar {
	if o.Level == nil {
		return new(slog.LevelVar)
	}
	return o.Level
}
