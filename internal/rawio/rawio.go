// Package rawio reads and writes non-blocking descriptors without notifying Go's
// scheduler of each system call. Otherwise a call that takes longer than 20 µs, as for
// a super-segment, costs a hand-over: the scheduler's monitor (sysmon) takes the
// processor from the caller and gives it to another thread, and keeps waking every
// 20 µs while it finds something to take. Under load that was a seventh of the agent's
// time. Calls made here never wait in the kernel: a descriptor that is not ready is left
// to the runtime's poller, as usual.
package rawio

import (
	"io"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Conn reads and writes one descriptor. Its methods may be called concurrently.
type Conn struct {
	raw      syscall.RawConn
	ops      sync.Pool // *op
	messages sync.Pool // *message
}

// op is one call. It is reused, because a function passed to RawConn escapes to the heap.
type op struct {
	trap uintptr
	poll []unix.PollFd // one, of a write that waits until poll(2) says that there is room; or none
	buf  []byte
	from Lender // of buf, if not nil
	n    int
	err  error
	call func(fd uintptr) bool
}

// New returns a Conn on c's descriptor, which must be in non-blocking mode, as the
// connections of package net and the pollable files of package os are.
func New(c syscall.Conn) (*Conn, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	f := &Conn{raw: raw, messages: sync.Pool{New: newMessage}}
	f.ops.New = func() any {
		o := &op{}
		o.call = o.once
		return o
	}
	return f, nil
}

// once makes the call; false means that the descriptor is not ready.
func (o *op) once(fd uintptr) bool {
	buf := o.buf
	if o.from != nil {
		buf = o.from.Lend()
	}
	if len(o.poll) > 0 {
		o.poll[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT}
		if n, err := unix.Poll(o.poll, 0); n == 0 && err == nil {
			return false // the kernel notifies the runtime's poller once there is
		}
	}
	for {
		n, errno := rw(o.trap, fd, buf)
		switch errno {
		case 0:
			o.n, o.err = n, nil
		case unix.EAGAIN:
			if o.from != nil {
				o.from.Return()
			}
			return false
		case unix.EINTR:
			continue
		default:
			o.n, o.err = 0, errno
		}
		return true
	}
}

func (f *Conn) do(wait func(func(uintptr) bool) error, trap uintptr, b []byte, from Lender, room bool) (int, error) {
	o := f.ops.Get().(*op)
	o.trap, o.buf, o.from, o.n, o.err = trap, b, from, 0, nil
	if o.poll = o.poll[:0]; room {
		o.poll = append(o.poll, unix.PollFd{})
	}
	err := wait(o.call)
	n := o.n
	if err == nil {
		err = o.err
	}
	o.buf, o.from = nil, nil
	f.ops.Put(o)
	return n, err
}

// Read is one read(2); it returns io.EOF for 0 bytes. Errors are the kernel's, or
// those of the RawConn (closed, deadline).
func (f *Conn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n, err := f.do(f.raw.Read, unix.SYS_READ, b, nil, false)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

// A Lender provides a buffer for one read.
type Lender interface {
	// Lend returns a buffer, which is not empty.
	Lend() []byte
	// Return gives it back unused: there is nothing to read now.
	Return()
}

// ReadInto is Read into a buffer that is borrowed only while there is something to
// read, not while waiting for it.
func (f *Conn) ReadInto(l Lender) (int, error) {
	n, err := f.do(f.raw.Read, unix.SYS_READ, nil, l, false)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

// Write writes all of b, in as many write(2) calls as needed. Errors as for Read.
func (f *Conn) Write(b []byte) (int, error) { return f.write(b, false) }

// WriteRoom is Write that calls write(2) only while poll(2) says that there is room. A TCP socket takes more than that: it
// fills its last segment, up to 64 KiB long, whatever TCP_NOTSENT_LOWAT says (tcp_sendmsg_locked in net/ipv4/tcp.c).
func (f *Conn) WriteRoom(b []byte) (int, error) { return f.write(b, true) }

func (f *Conn) write(b []byte, room bool) (int, error) {
	done := 0
	for done < len(b) {
		n, err := f.do(f.raw.Write, unix.SYS_WRITE, b[done:], nil, room)
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// rw is read(2) or write(2) of a buffer that is not empty.
func rw(trap, fd uintptr, b []byte) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall(trap, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return int(n), errno
}
