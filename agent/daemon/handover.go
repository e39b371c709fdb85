package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/agent/host"
	"edgemesh/tunnel/tun"
)

// handoverFile, in the state directory, which nobody else may enter, is the socket on which an agent gives one more descriptor of its
// TUN's queue (SCM_RIGHTS) to the one that stands by.
const handoverFile = "tun.sock"

// offerTUN gives it to whoever asks, until the function that it returns is called.
func offerTUN(stateDir string, device *lastingTUN, log *slog.Logger) (stop func()) {
	path := filepath.Join(stateDir, handoverFile)
	_ = os.Remove(path) // a killed agent's
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		log.Warn("an agent that takes over from this one will lose some packets of pods", "err", err)
		return func() {}
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			to, err := l.AcceptUnix()
			if err != nil {
				return
			}
			if fd, err := device.Share(); err == nil {
				_, _, _ = to.WriteMsgUnix([]byte{1}, unix.UnixRights(fd), nil)
				_ = unix.Close(fd)
			}
			_ = to.Close()
		}
	})
	return func() {
		_ = l.Close()
		serving.Wait()
	}
}

// askTUN is the other end.
func askTUN(ctx context.Context, stateDir string) (fd int, err error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", filepath.Join(stateDir, handoverFile))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	rights := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.(*net.UnixConn).ReadMsgUnix(make([]byte, 1), rights)
	if err != nil {
		return 0, err
	}
	all, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(all) != 1 {
		return 0, errors.Join(err, fmt.Errorf("%d control messages", len(all)))
	}
	fds, err := unix.ParseUnixRights(&all[0])
	if err != nil || len(fds) != 1 {
		return 0, errors.Join(err, fmt.Errorf("%d descriptors", len(fds)))
	}
	return fds[0], nil
}

const (
	// holdFor is how long the queue is kept that an agent without a hand-over gave up, until the lock follows: that agent may only be opening it
	// again. holdAgain is the pause then.
	holdFor, holdAgain = 2 * time.Second, 30 * time.Second
)

// heldTUN keeps the queue of the TUN from the last read of the agent before until this one reads: no packet of a pod is lost between. It is
// a bare descriptor, since the runtime's poller would wake for every packet.
type heldTUN struct {
	fd    int       // 0: none
	until time.Time // when it is given back, zero: never
	again time.Time // when it may be taken again
}

// ask takes the queue from the agent that runs here, unless that is of an older release or has none.
func (h *heldTUN) ask(ctx context.Context, stateDir string) {
	ctx, stop := context.WithTimeout(ctx, holderTimeout)
	defer stop()
	h.fd, _ = askTUN(ctx, stateDir)
}

// attach takes the queue as soon as no agent has it, where the TUN is there: one of an older release hands none over. What keeps it from that
// openDevice says.
func (h *heldTUN) attach() {
	switch now := time.Now(); {
	case h.fd != 0 && !h.until.IsZero() && now.After(h.until):
		h.drop()
		h.again = now.Add(holdAgain)
	case h.fd == 0 && now.After(h.again):
		h.fd, _ = tun.Hold(host.TUNName)
		h.until = now.Add(holdFor)
	}
}

// take hands the queue on, 0: none.
func (h *heldTUN) take() int {
	fd := h.fd
	h.fd, h.until = 0, time.Time{}
	return fd
}

func (h *heldTUN) drop() {
	if fd := h.take(); fd != 0 {
		_ = unix.Close(fd)
	}
}
