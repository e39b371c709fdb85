package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socketOptions are those that a program may be kept from setting: level and name.
func socketOptions() map[string][][2]uint32 {
	return map[string][][2]uint32{
		"congestion":  {{unix.IPPROTO_TCP, unix.TCP_CONGESTION}},
		"udp-buffers": {{unix.SOL_SOCKET, unix.SO_RCVBUFFORCE}, {unix.SOL_SOCKET, unix.SO_SNDBUFFORCE}},
	}
}

// without becomes a program to which the kernel refuses some socket options (EPERM),
// as one may be in a container, or on a kernel that lacks them.
func without(_ context.Context, args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("%w: name options and a program", errUsage)
	}
	var refused [][2]uint32
	for name := range strings.SplitSeq(args[0], ",") {
		o, ok := socketOptions()[name]
		if !ok {
			return fmt.Errorf("%w: no option %q", errUsage, name)
		}
		refused = append(refused, o...)
	}
	path, err := exec.LookPath(args[1])
	if err != nil {
		return err
	}
	runtime.LockOSThread() // filters are a thread's, and stay over exec
	if err := refuse(refused); err != nil {
		return err
	}
	return os.NewSyscallError("exec", syscall.Exec(path, args[1:], os.Environ()))
}

// refuse installs a seccomp filter, seccomp(2): classic BPF over struct seccomp_data,
// whose fields are nr at 0 and args, 64 bits each, from 16 on.
func refuse(options [][2]uint32) error {
	const level, name = 16 + 8, 16 + 2*8 // low halves; little-endian
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	// unless skips n instructions if what was loaded is not k.
	unless := func(k uint32, n uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: n, K: k}
	}
	end := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	var each []unix.SockFilter
	for _, o := range options {
		each = slices.Concat(each, []unix.SockFilter{
			load(level), unless(o[0], 3),
			load(name), unless(o[1], 1),
			end(unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)),
		})
	}
	filter := slices.Concat([]unix.SockFilter{load(0), unless(unix.SYS_SETSOCKOPT, uint8(len(each)))}, each,
		[]unix.SockFilter{end(unix.SECCOMP_RET_ALLOW)})
	return install(filter)
}

// install has the kernel apply a filter to this thread, and to what it becomes and starts.
func install(filter []unix.SockFilter) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl PR_SET_NO_NEW_PRIVS", err)
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
	return os.NewSyscallError("prctl PR_SET_SECCOMP", err)
}
