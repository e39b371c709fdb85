package cniconf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/internal/config"
)

// ErrUntried means that this agent may not execute the plugin, as where SELinux or AppArmor confine it, or could not in time: the runtime may
// all the same.
var ErrUntried = errors.New("the agent could not try the plugin; whether the container runtime can execute it is not known")

// pluginTime is how long the plugin may take to tell its versions.
const pluginTime = 10 * time.Second

// Runs executes the installed plugin as the runtime would, with VERSION, which changes nothing. The error is a *config.KeyError, or ErrUntried.
// It may be called at any time.
func (i *Installer) Runs() error {
	if i.c.BinDir == "" {
		return nil
	}
	path := filepath.Join(i.c.BinDir, PluginName)
	wrong := func(format string, args ...any) error {
		return &config.KeyError{Key: "cniBinDir", Err: fmt.Errorf(format, args...)}
	}
	var at unix.Statfs_t
	if err := unix.Statfs(path, &at); err == nil && at.Flags&unix.ST_NOEXEC != 0 {
		return wrong("%s is on a file system that is mounted noexec, so the container runtime cannot execute it and no pod gets a network: mount it with exec, "+
			"or set cniBinDir, and the runtime's directory of plugins, to another one", path)
	}
	ctx, cancel := context.WithTimeout(context.Background(), pluginTime)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, path)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = []string{"CNI_COMMAND=VERSION"}, strings.NewReader(`{"cniVersion":"`+CNIVersion+`"}`), &said, &said
	switch err := cmd.Run(); {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission) && !executable(path):
		return wrong("%s has no right to be executed (chmod 755): no pod gets a network", path)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ETXTBSY), ctx.Err() != nil: // confined, just being replaced, or a slow disk
		return fmt.Errorf("%w: %w", ErrUntried, err)
	default:
		return wrong("%s does not run, so no pod gets a network: %w: %.200s; is it of this machine's architecture, and whole?", path, err, strings.TrimSpace(said.String()))
	}
}

// executable reports whether anybody may execute a file.
func executable(path string) bool {
	st, err := os.Stat(path)
	return err != nil || st.Mode()&0o111 != 0
}
