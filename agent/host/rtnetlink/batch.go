package rtnetlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
)

// A thousand peers mean thousands of requests to the kernel. One system call carries many of
// them and only the last is answered: otherwise each costs two calls and a wake-up.

// request is one netlink message that changes something.
type request struct {
	what   string
	ignore error // the kernel's answer when the change was already made; nil: there is none
	msg    []byte
}

const (
	// requestsPerCall is how many go into one call: even if all of them fail, the
	// answers fit into a socket's default buffer (212992 bytes, about 1 KiB each).
	requestsPerCall = 128
	// answerTime is how long the kernel may take to answer a call.
	answerTime = 10 // seconds
)

// newRequest serializes a netlink message.
func newRequest(what string, ignore error, req *nl.NetlinkRequest) request {
	return request{what, ignore, req.Serialize()}
}

// batched returns one change that makes all requests; no change for no requests.
func batched(what string, all []request) []plan.Change {
	switch len(all) {
	case 0:
		return nil
	case 1:
		what = all[0].what
	default:
		what = fmt.Sprintf("%s: %d changes, first %s", what, len(all), all[0].what)
	}
	return []plan.Change{{What: what, Do: func() error { return send(all) }}}
}

// send makes all requests. A failed request does not stop the others.
func send(all []request) error {
	s, err := openNetlink()
	if err != nil {
		return err
	}
	defer unix.Close(s)
	var errs []error
	for part := range slices.Chunk(all, requestsPerCall) {
		errs = append(errs, call(s, part))
	}
	return errors.Join(errs...)
}

// openNetlink opens a socket in the network namespace of the calling thread.
func openNetlink() (int, error) {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, fmt.Errorf("open netlink socket: %w", err)
	}
	err = errors.Join(unix.Bind(s, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerTime}))
	if err != nil {
		unix.Close(s)
		return 0, fmt.Errorf("open netlink socket: %w", err)
	}
	return s, nil
}

// call sends requests in one system call, numbered from 1, and returns the errors of
// those that failed.
func call(s int, all []request) error {
	var out []byte
	for i, r := range all {
		flags := binary.NativeEndian.Uint16(r.msg[6:]) &^ unix.NLM_F_ACK
		if i == len(all)-1 {
			flags |= unix.NLM_F_ACK
		}
		binary.NativeEndian.PutUint16(r.msg[6:], flags)
		binary.NativeEndian.PutUint32(r.msg[8:], uint32(i+1))
		out = append(out, r.msg...)
		out = append(out, make([]byte, -len(out)&(unix.NLMSG_ALIGNTO-1))...)
	}
	if err := unix.Sendto(s, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("%s: send to the kernel: %w", all[0].what, err)
	}
	var errs []error
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(s, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("%s: answer of the kernel: %w", all[0].what, err))...)
		}
		msgs, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return fmt.Errorf("answer of the kernel: %w", err)
		}
		for _, m := range msgs {
			i := int(m.Header.Seq) - 1
			if m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4 || i < 0 || i >= len(all) {
				continue
			}
			if err := errnoOf(m.Data); err != nil && !(all[i].ignore != nil && errors.Is(err, all[i].ignore)) {
				errs = append(errs, fmt.Errorf("%s: %w", all[i].what, err))
			}
			if i == len(all)-1 {
				return errors.Join(errs...)
			}
		}
	}
}

// errnoOf is the error that an answer carries, nil for none.
func errnoOf(data []byte) error {
	if errno := -int32(binary.NativeEndian.Uint32(data)); errno != 0 {
		return unix.Errno(errno)
	}
	return nil
}
