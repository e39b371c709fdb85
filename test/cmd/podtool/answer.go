package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// answerReport is the outcome of answers: round-trip times of one byte.
type answerReport struct {
	Count int     `json:"count"`
	P50Us float64 `json:"p50Us"`
	P99Us float64 `json:"p99Us"`
	MaxUs float64 `json:"maxUs"`
}

// answerWait is how long one answer may take.
const answerWait = 2 * time.Second

// answers sends one byte, waits until it is back, and so on. Both ends use blocking
// system calls: the poller's wake-ups would be half of what is to be measured. Over TCP
// each end has a CPU of its own, as two nodes have: both on one, where the scheduler
// leaves them for as long as a connection lasts, or not, answer in half the time.
func answers(ctx context.Context, args []string) error {
	fs := newFlags("answers")
	proto := fs.String("proto", "tcp", "tcp or udp")
	duration := fs.Duration("duration", time.Second, "of all")
	host, err := parse(fs, args, 1)
	if err != nil {
		return err
	}
	port, ok := map[string]int{"tcp": bulkPort, "udp": servePort}[*proto]
	if !ok {
		return fmt.Errorf("%w: --proto %q", errUsage, *proto)
	}
	d := net.Dialer{Timeout: 5 * time.Second}
	c, err := d.DialContext(ctx, *proto, net.JoinHostPort(host[0], strconv.Itoa(port)))
	if err != nil {
		return err
	}
	defer c.Close()
	if *proto == "tcp" {
		if err := startAnswers(c); err != nil {
			return err
		}
	}
	f, err := blocking(c, answerWait)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := ownCPU(false); err != nil {
		return err
	}
	fd, p := int(f.Fd()), []byte{1}
	var times []time.Duration
	for end := time.Now().Add(*duration); time.Now().Before(end) && ctx.Err() == nil; {
		start := time.Now()
		if err := exchange(fd, p); err != nil {
			return fmt.Errorf("answer %d: %w", len(times), err)
		}
		times = append(times, time.Since(start))
	}
	return report(newAnswerReport(times))
}

func newAnswerReport(times []time.Duration) answerReport {
	r := answerReport{Count: len(times)}
	slices.Sort(times)
	if n := len(times); n > 0 {
		us := func(i int) float64 { return float64(times[i].Nanoseconds()) / 1000 }
		r.P50Us, r.P99Us, r.MaxUs = us(n/2), us(n*99/100), us(n-1)
	}
	return r
}

// ownCPU binds the goroutine to one of the process's CPUs, the first or the last one,
// for good: its thread ends with it.
func ownCPU(last bool) error {
	runtime.LockOSThread()
	var may, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return fmt.Errorf("CPUs of this process: %w", err)
	}
	for cpu, left := 0, may.Count(); left > 0; cpu++ {
		if !may.IsSet(cpu) {
			continue
		}
		if left--; !last || left == 0 {
			one.Set(cpu)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("bind to a CPU: %w", err)
	}
	return nil
}

// startAnswers requests the service and waits for its first byte, so that both
// ends change to blocking calls with nothing in flight.
func startAnswers(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(answerWait)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "answer\n"); err != nil {
		return fmt.Errorf("request answers: %w", err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		return fmt.Errorf("request answers: %w", err)
	}
	return c.SetDeadline(time.Time{})
}

// blocking returns the connection's socket for blocking calls that end after wait.
func blocking(c net.Conn, wait time.Duration) (*os.File, error) {
	filer, ok := c.(interface{ File() (*os.File, error) })
	if !ok {
		return nil, fmt.Errorf("%T has no socket", c)
	}
	f, err := filer.File()
	if err != nil {
		return nil, err
	}
	t := unix.NsecToTimeval(wait.Nanoseconds())
	err = errors.Join(unix.SetNonblock(int(f.Fd()), false),
		unix.SetsockoptTimeval(int(f.Fd()), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &t))
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func exchange(fd int, p []byte) error {
	if _, err := again(unix.Write, fd, p); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	n, err := again(unix.Read, fd, p)
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	return nil
}

// again repeats a call that a signal interrupted, as the runtime's own do.
func again(call func(int, []byte) (int, error), fd int, p []byte) (n int, err error) {
	for {
		if n, err = call(fd, p); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// serveAnswers sends every byte back until the client is gone.
func serveAnswers(c net.Conn, in *bufio.Reader) error {
	if in.Buffered() > 0 {
		return errors.New("answer: bytes before the first answer")
	}
	if _, err := c.Write([]byte{0}); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	f, err := blocking(c, 5*answerWait)
	if err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	defer f.Close()
	if err := ownCPU(true); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	fd, p := int(f.Fd()), make([]byte, 1)
	for {
		n, err := again(unix.Read, fd, p)
		if err != nil || n == 0 {
			return nil // the client says what it saw
		}
		if _, err := again(unix.Write, fd, p); err != nil {
			return nil
		}
	}
}
