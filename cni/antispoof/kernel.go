package antispoof

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// What of bpf(2) the filter needs: all that the ebpf module can do would be a sixth of the plugin. The structures are those of
// union bpf_attr in linux/bpf.h; pointers have 64 bits on every machine, at multiples of 8, and nothing is padded.

const (
	license = "Apache-2.0"
	// loadTries is how often a program is loaded that a signal interrupts: the verifier gives up, and Go sends signals.
	loadTries = 30
	logSize   = 64 << 10
	// onDevice is how many programs of a device are looked at.
	onDevice = 64
)

type loadAttr struct {
	kind, instructions uint32
	code, license      uint64
	logLevel, logSize  uint32
	log                uint64
	_, flags           uint32
	name               [unix.BPF_OBJ_NAME_LEN]byte // Linux 4.15
}

type attachAttr struct {
	ifindex, program, hook, flags uint32
	_, _                          uint32
	_                             uint64
}

// queryAttr is whole: the kernel writes to its end, however much of it it is told of.
type queryAttr struct {
	ifindex, hook uint32
	_, _          uint32
	ids           uint64
	count, _      uint32
	_, _, _, _    uint64
}

type infoAttr struct {
	program, size uint32
	info          uint64
}

// programInfo is the beginning of struct bpf_prog_info.
type programInfo struct {
	_    [64]byte
	name [unix.BPF_OBJ_NAME_LEN]byte
}

// call is bpf(2) with size bytes of attributes. It returns a file descriptor where the command makes one.
func call(command int, attr unsafe.Pointer, size uintptr) (int, error) {
	for range loadTries - 1 {
		fd, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(attr), size)
		if errno == 0 {
			return int(fd), nil
		}
		if errno != unix.EAGAIN && errno != unix.EINTR {
			return -1, errno
		}
	}
	return -1, unix.EAGAIN
}

// program is one that the kernel has verified, until it is closed.
type program struct{ fd int }

func (p program) close() { _ = unix.Close(p.fd) }

// loadFilter has the kernel verify a filter. Where it refuses, the error has the end of what the verifier said.
func loadFilter(filter asm.Instructions) (program, error) {
	var code bytes.Buffer
	var order binary.ByteOrder = binary.LittleEndian
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		order = binary.BigEndian
	}
	if err := filter.Marshal(&code, order); err != nil {
		return program{}, err
	}
	p, err := verify(code.Bytes(), nil)
	if errors.Is(err, unix.EPERM) { // before Linux 5.11 programs count as locked memory
		all := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
		if rerr := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &all); rerr == nil {
			p, err = verify(code.Bytes(), nil)
		}
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EACCES) {
		said := make([]byte, logSize)
		if again, aerr := verify(code.Bytes(), said); aerr == nil {
			return again, nil
		}
		text, _, _ := strings.Cut(string(said), "\x00")
		lines := strings.Split(strings.TrimSpace(text), "\n")
		err = fmt.Errorf("%w: %s", err, strings.Join(lines[max(0, len(lines)-3):], "; "))
	}
	return p, err
}

// verify is one try of loadFilter. What the verifier says is written into said, up to a zero.
func verify(code, said []byte) (program, error) {
	var pinned runtime.Pinner
	defer pinned.Unpin()
	address := func(b []byte) uint64 {
		pinned.Pin(&b[0])
		return uint64(uintptr(unsafe.Pointer(&b[0])))
	}
	a := &loadAttr{kind: unix.BPF_PROG_TYPE_SCHED_CLS, instructions: uint32(len(code) / asm.InstructionSize),
		code: address(code), license: address([]byte(license + "\x00"))}
	if len(said) > 0 {
		a.logLevel, a.logSize, a.log = 1, uint32(len(said)), address(said)
	}
	copy(a.name[:len(a.name)-1], filterName)
	fd, err := call(unix.BPF_PROG_LOAD, unsafe.Pointer(a), unsafe.Sizeof(*a))
	if errors.Is(err, unix.E2BIG) { // before Linux 4.15 without a name
		fd, err = call(unix.BPF_PROG_LOAD, unsafe.Pointer(a), unsafe.Offsetof(a.name))
	}
	return program{fd}, os.NewSyscallError("bpf", err)
}

// attachTCX puts p on a device's ingress hook, which Linux has from 6.6 on.
func attachTCX(ifindex int, p program) error {
	a := &attachAttr{ifindex: uint32(ifindex), program: uint32(p.fd), hook: unix.BPF_TCX_INGRESS}
	_, err := call(unix.BPF_PROG_ATTACH, unsafe.Pointer(a), unsafe.Sizeof(*a))
	return os.NewSyscallError("bpf", err)
}

// onTCX are the names of the programs on that hook: none on a kernel without it.
func onTCX(ifindex int) (names []string) {
	var pinned runtime.Pinner
	defer pinned.Unpin()
	ids := new([onDevice]uint32)
	pinned.Pin(ids)
	q := &queryAttr{ifindex: uint32(ifindex), hook: unix.BPF_TCX_INGRESS, ids: uint64(uintptr(unsafe.Pointer(ids))), count: onDevice}
	if _, err := call(unix.BPF_PROG_QUERY, unsafe.Pointer(q), unsafe.Sizeof(*q)); err != nil && !errors.Is(err, unix.ENOSPC) {
		return nil
	}
	for _, id := range ids[:min(q.count, onDevice)] {
		if name, err := nameOf(id); err == nil {
			names = append(names, name)
		}
	}
	return names
}

// nameOf is the name of the program with that ID.
func nameOf(id uint32) (string, error) {
	fd, err := call(unix.BPF_PROG_GET_FD_BY_ID, unsafe.Pointer(&[3]uint32{id}), unsafe.Sizeof([3]uint32{}))
	if err != nil {
		return "", err
	}
	defer program{fd}.close()
	var pinned runtime.Pinner
	defer pinned.Unpin()
	info := new(programInfo)
	pinned.Pin(info)
	a := &infoAttr{program: uint32(fd), size: uint32(unsafe.Sizeof(*info)), info: uint64(uintptr(unsafe.Pointer(info)))}
	if _, err := call(unix.BPF_OBJ_GET_INFO_BY_FD, unsafe.Pointer(a), unsafe.Sizeof(*a)); err != nil {
		return "", err
	}
	return unix.ByteSliceToString(info.name[:]), nil
}
