package rawio

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rw is read(2) or write(2) of a buffer that is not empty.
func rw(trap, fd uintptr, b []byte) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall(trap, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return int(n), errno
}
