package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// confine runs a program that may use these system calls only; others fail with EPERM, as in a unit with SystemCallFilter=
// and SystemCallErrorNumber=EPERM. What the program starts is confined as well.
func confine(_ context.Context, args []string) error {
	fs := newFlags("confine")
	list := fs.String("syscalls", "", "their numbers, separated by commas")
	if err := fs.Parse(args); err != nil || fs.NArg() == 0 {
		return fmt.Errorf("%w: confine --syscalls N,N… PROGRAM ARGS…", errUsage)
	}
	// struct seccomp_data: the number at 0.
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}}
	for _, text := range append(strings.Split(*list, ","), fmt.Sprint(unix.SYS_EXECVE)) {
		nr, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return fmt.Errorf("%w: --syscalls: %w", errUsage, err)
		}
		filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(nr), Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)})
	program, err := exec.LookPath(fs.Arg(0))
	if err != nil {
		return err
	}
	runtime.LockOSThread() // the filter is the thread's, and Exec keeps this one
	if err := install(filter); err != nil {
		return err
	}
	return os.NewSyscallError("exec", syscall.Exec(program, fs.Args(), os.Environ()))
}
