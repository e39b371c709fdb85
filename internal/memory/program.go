package memory

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"os"
	"runtime/debug"
	"slices"

	"golang.org/x/sys/unix"
)

// tight is the memory, in bytes, below which the program's own pages may not all find room.
const tight = 256 << 20

// byPage has the kernel read single pages of the program when they are needed. Usually it reads what is around them too,
// up to the device's whole read-ahead, 128 KiB to 8 MiB: in a small cgroup that drops the pages in use for others that
// nobody requested, and the program does little else than read itself.
func byPage() error { return advise(unix.MADV_RANDOM) }

// unmap has the kernel forget which of the program's pages this process uses. They stay in its cache, and what runs
// comes back by faults that read nothing; what only starting needed, and what was mapped because it is beside that,
// no longer counts as in use, and goes first where memory is short. The error is errors.ErrUnsupported where the
// program is relocated at its start, as ours is not: such pages would come back as they are in the file.
func unmap() error {
	info, ok := debug.ReadBuildInfo()
	if !ok || slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool {
		return s.Key == "-buildmode" && s.Value == "pie"
	}) {
		return errors.ErrUnsupported
	}
	return advise(unix.MADV_DONTNEED)
}

// advise says how the program's own pages are used.
func advise(how int) error {
	file, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	for from, to := range mappings(maps, file) {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, uintptr(how)); errno != 0 {
			return errno
		}
	}
	return nil
}

// mappings yields what of a file is mapped without being writable, as proc_pid_maps(5) lists it.
func mappings(maps []byte, file string) iter.Seq2[uintptr, uintptr] {
	return func(yield func(from, to uintptr) bool) {
		for line := range bytes.Lines(maps) {
			var from, to, offset uintptr
			var may, device, inode string
			if n, _ := fmt.Sscanf(string(line), "%x-%x %s %x %s %s", &from, &to, &may, &offset, &device, &inode); n != 6 {
				continue
			}
			if !bytes.HasSuffix(bytes.TrimSpace(line), []byte(" "+file)) || bytes.ContainsRune([]byte(may), 'w') {
				continue
			}
			if !yield(from, to) {
				return
			}
		}
	}
}
