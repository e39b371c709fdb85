package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// bulkReport is the outcome of one bulk transfer.
type bulkReport struct {
	Bytes   int64   `json:"bytes"`
	SHA256  string  `json:"sha256,omitempty"`
	Match   bool    `json:"match"`   // both ends have the same checksum (or count, without checksums)
	Seconds float64 `json:"seconds"` // from the first byte until all were confirmed
	Mbps    float64 `json:"mbps"`
	StallMs float64 `json:"stallMs"` // the longest time one chunk took
	// Silences are all times of more than a second in which data were in flight and none was acknowledged, in steps of 50 ms, in
	// their order. Meaningless with --pull, where this side acknowledges.
	Silences []silence `json:"silences,omitempty"`
	Error    string    `json:"error,omitempty"`
}

const chunk = 128 << 10 // bytes of one write

// generate writes n bytes that do not compress and in which no chunk equals
// another, so that a lost, doubled or swapped one changes the checksum.
func generate(w io.Writer, n int64) error {
	block := make([]byte, chunk)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(block) // never fails
	for off := int64(0); off < n; off += chunk {
		binary.BigEndian.PutUint64(block, uint64(off))
		if _, err := w.Write(block[:min(chunk, n-off)]); err != nil {
			return fmt.Errorf("after %d bytes: %w", off, err)
		}
	}
	return nil
}

// stallWatch remembers the longest time between two calls of Write or Read.
type stallWatch struct {
	net.Conn
	limit *limiter
	last  time.Time
	worst time.Duration
}

func (s *stallWatch) note() {
	now := time.Now()
	if !s.last.IsZero() {
		s.worst = max(s.worst, now.Sub(s.last))
	}
	s.last = now
}

func (s *stallWatch) Write(p []byte) (int, error) {
	n, err := s.Conn.Write(p)
	s.note()
	s.limit.wait(n)
	return n, err
}

func (s *stallWatch) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	s.note()
	return n, err
}

// limiter paces a sender to a number of bytes per second; 0 does not.
type limiter struct {
	perSecond float64
	start     time.Time
	sent      float64
}

func (l *limiter) wait(n int) {
	if l.perSecond == 0 {
		return
	}
	if l.start.IsZero() {
		l.start = time.Now()
	}
	l.sent += float64(n)
	time.Sleep(time.Until(l.start.Add(time.Duration(l.sent / l.perSecond * float64(time.Second)))))
}

func bulk(ctx context.Context, args []string) error {
	fs := newFlags("bulk")
	n := fs.Int64("bytes", 1<<20, "bytes to move")
	mbps := fs.Float64("mbps", 0, "limit in Mbit/s, 0 = none")
	pull := fs.Bool("pull", false, "the server sends")
	sum := fs.Bool("sum", true, "compare SHA-256")
	dur := fs.Duration("duration", 0, "send for this long instead of --bytes")
	host, err := parse(fs, args, 1)
	if err != nil {
		return err
	}
	d := net.Dialer{Timeout: 5 * time.Second}
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host[0], strconv.Itoa(bulkPort)))
	if err != nil {
		return errors.Join(err, report(bulkReport{Error: err.Error()}))
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()

	stuck := watchStuck(c.(*net.TCPConn))
	w := &stallWatch{Conn: c, limit: &limiter{perSecond: *mbps * 1e6 / 8}}
	var r bulkReport
	start := time.Now()
	switch {
	case *pull:
		r, err = pullBulk(w, *n)
	case *dur > 0:
		r, err = pushFor(w, *dur)
	default:
		r, err = pushBulk(w, *n, *sum)
	}
	r.Seconds = time.Since(start).Seconds()
	r.Mbps = float64(r.Bytes) * 8 / 1e6 / r.Seconds
	r.StallMs, r.Silences = float64(w.worst)/float64(time.Millisecond), stuck()
	if err == nil && !r.Match {
		err = errors.New("the server got something else")
	}
	if err != nil {
		r.Error = err.Error()
	}
	return errors.Join(err, report(r))
}

func pushBulk(c *stallWatch, n int64, withSum bool) (bulkReport, error) {
	verb, sum := "drop\n", sha256.New()
	var to io.Writer = c
	if withSum {
		verb, to = "push\n", io.MultiWriter(c, sum)
	}
	if _, err := io.WriteString(c.Conn, verb); err != nil {
		return bulkReport{}, err
	}
	if err := generate(to, n); err != nil {
		return bulkReport{}, err
	}
	got, err := finishPush(c)
	r := bulkReport{Bytes: got.Bytes, SHA256: got.SHA256, Match: got.Bytes == n}
	if withSum {
		r.Match = r.Match && got.SHA256 == hex.EncodeToString(sum.Sum(nil))
	}
	return r, err
}

// pushFor sends for the given time.
func pushFor(c *stallWatch, d time.Duration) (bulkReport, error) {
	if _, err := io.WriteString(c.Conn, "drop\n"); err != nil {
		return bulkReport{}, err
	}
	block := make([]byte, chunk)
	sent := int64(0)
	for end := time.Now().Add(d); time.Now().Before(end); sent += chunk {
		if _, err := c.Write(block); err != nil {
			return bulkReport{Bytes: sent}, err
		}
	}
	got, err := finishPush(c)
	return bulkReport{Bytes: got.Bytes, Match: got.Bytes == sent}, err
}

// finishPush half-closes and reads the server's report.
func finishPush(c *stallWatch) (bulkReport, error) {
	var got bulkReport
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		return got, err
	}
	if err := json.NewDecoder(c).Decode(&got); err != nil {
		return got, fmt.Errorf("read the server's report: %w", err)
	}
	return got, nil
}

func pullBulk(c *stallWatch, n int64) (bulkReport, error) {
	if _, err := fmt.Fprintf(c.Conn, "pull %d\n", n); err != nil {
		return bulkReport{}, err
	}
	sum := sha256.New()
	got, err := io.CopyBuffer(sum, io.LimitReader(c, n), make([]byte, 256<<10))
	if err != nil {
		return bulkReport{Bytes: got}, err
	}
	want := make([]byte, sha256.Size)
	if _, err := io.ReadFull(c, want); err != nil {
		return bulkReport{Bytes: got}, fmt.Errorf("read the checksum: %w", err)
	}
	mine := sum.Sum(nil)
	return bulkReport{Bytes: got, SHA256: hex.EncodeToString(mine), Match: string(mine) == string(want)}, nil
}

// watchStuck watches until the function it returns is called, which returns the times in which data were in flight and none
// was acknowledged. A sender with much buffer does not notice them.
func watchStuck(c *net.TCPConn) func() []silence {
	done, result := make(chan struct{}), make(chan []silence, 1)
	go func() {
		var all []silence
		var acked uint64
		now := silence{At: time.Now()}
		note := func() {
			if now.Ms > longSilence {
				all = append(all, now)
			}
		}
		defer func() { note(); result <- all }()
		raw, err := c.SyscallConn()
		if err != nil {
			return
		}
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			select {
			case <-done:
				tick.Stop()
				return
			case <-tick.C:
			}
			var info *unix.TCPInfo
			if raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO) }) != nil || err != nil {
				continue
			}
			if info.Unacked == 0 || info.Bytes_acked > acked {
				note()
				acked, now = info.Bytes_acked, silence{At: time.Now()}
			}
			now.Ms = ms(time.Since(now.At))
		}
	}()
	return func() []silence { close(done); return <-result }
}
