package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// readonly runs a program that may write to these paths only, and to the kernel's own file systems, as a unit with
// ProtectSystem=strict and ReadWritePaths=.
func readonly(_ context.Context, args []string) error {
	fs := newFlags("readonly")
	list := fs.String("except", "", "paths, separated by commas")
	if err := fs.Parse(args); err != nil || fs.NArg() == 0 {
		return fmt.Errorf("%w: readonly --except PATH,PATH… PROGRAM ARGS…", errUsage)
	}
	program, err := exec.LookPath(fs.Arg(0))
	if err != nil {
		return err
	}
	runtime.LockOSThread() // the mounts are the thread's, and Exec keeps this one
	err = errors.Join(
		unix.Unshare(unix.CLONE_NEWNS|unix.CLONE_FS),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}),
	)
	if err != nil {
		return fmt.Errorf("make the file system read-only: %w", err)
	}
	for _, path := range append(strings.Split(*list, ","), "/proc", "/sys", "/dev") {
		err := errors.Join(
			unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, ""),
			unix.MountSetattr(unix.AT_FDCWD, path, unix.AT_RECURSIVE, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}),
		)
		if err != nil {
			return fmt.Errorf("make %s writable: %w", path, err)
		}
	}
	return os.NewSyscallError("exec", syscall.Exec(program, fs.Args(), os.Environ()))
}
