// Command watched is an agent under a small supervisor, which speaks the service manager's protocol (sd_notify(3)) as systemd
// does for a unit of Type=notify with WatchdogSec=30, TimeoutAbortSec=5 and RestartSec=1. Tests block a loop of the agent: they
// write its name into the file hang beside its configuration. The supervisor logs what it sees, and keeps the agent's process ID
// in the file pid there.
//
//	watched run --config FILE
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"edgemesh/agent/daemon"
	"edgemesh/internal/config"
	"edgemesh/internal/logs"
	"edgemesh/tunnel"
)

const (
	silence = 30 // seconds without a word, by the supervisor's own ticks: a suspended machine does not count
	abort   = 5 * time.Second
	pause   = time.Second
	clock   = "15:04:05.000"
)

func main() {
	if len(os.Args) != 4 || os.Args[1] != "run" || os.Args[2] != "--config" {
		fmt.Fprintln(os.Stderr, "usage: watched run --config FILE")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	do := supervise
	if os.Getenv("NOTIFY_SOCKET") != "" {
		do = agent
	}
	if err := do(ctx, os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "watched:", err)
		os.Exit(1)
	}
}

// agent runs one whose loops can be blocked.
func agent(ctx context.Context, file string) error {
	cfg, err := config.Load(file)
	if err != nil {
		return err
	}
	block := func(loop string) {
		trigger := filepath.Join(filepath.Dir(file), "hang")
		if name, err := os.ReadFile(trigger); err == nil && string(name) == loop && os.Remove(trigger) == nil {
			say("%s is blocked", loop)
			select {}
		}
	}
	o := daemon.Options{
		Version: "watched", Block: block,
		Device:   func(d tunnel.Device) tunnel.Device { return device{d, block} },
		Underlay: func(u tunnel.Underlay) tunnel.Underlay { return underlay{u, block} },
	}
	o.Log, o.Level = logs.New(os.Stderr, cfg.Log, false)
	return daemon.Run(ctx, cfg, o)
}

// device is a TUN whose reader can be blocked.
type device struct {
	tunnel.Device
	block func(loop string)
}

func (d device) Read(b []byte) (int, error) {
	n, err := d.Device.Read(b)
	d.block("TUN reader")
	return n, err
}

// underlay opens carriers whose writers can be blocked.
type underlay struct {
	tunnel.Underlay
	block func(loop string)
}

func (u underlay) Open(ctx context.Context, id tunnel.PeerID, lane tunnel.Lane) (tunnel.Carrier, error) {
	c, err := u.Underlay.Open(ctx, id, lane)
	if err != nil {
		return nil, err
	}
	name := map[tunnel.Lane]string{tunnel.StreamLane: "stream", tunnel.DatagramLane: "datagram"}[lane]
	return &carrier{c, "writer of the " + name + " lane", u.block, false}, nil
}

type carrier struct {
	tunnel.Carrier
	writer string
	block  func(loop string)
	open   bool // HELLO is written, which is not the writer's: whoever opens a carrier has a deadline
}

func (c *carrier) Write(b []byte) (int, error) {
	if c.open {
		c.block(c.writer)
	}
	c.open = true
	return c.Carrier.Write(b)
}

// supervise runs the agent again and again until ctx ends.
func supervise(ctx context.Context, file string) error {
	socket := filepath.Join(filepath.Dir(file), "notify.sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer l.Close()
	words := make(chan string, 16)
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := l.Read(buf)
			if err != nil {
				return
			}
			words <- string(buf[:n])
		}
	}()
	for runs := 1; ; runs++ {
		c := exec.Command(os.Args[0], os.Args[1:]...)
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		c.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket, fmt.Sprint("WATCHDOG_USEC=", silence*int(time.Second/time.Microsecond)))
		if err := c.Start(); err != nil {
			return err
		}
		say("run %d: pid %d", runs, c.Process.Pid)
		if err := os.WriteFile(filepath.Join(filepath.Dir(file), "pid"), fmt.Append(nil, c.Process.Pid), 0o600); err != nil {
			return err
		}
		say("run %d ended: %v", runs, watch(ctx, c, words))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// watch returns how the agent ended. It is killed when it is silent.
func watch(ctx context.Context, c *exec.Cmd, words <-chan string) error {
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	ready, quiet := false, 0
	term := ctx.Done()
	for {
		select {
		case err := <-ended:
			return err
		case <-term:
			term = nil
			_ = c.Process.Signal(syscall.SIGTERM)
		case w := <-words:
			if w == "WATCHDOG=1" {
				quiet = 0
				continue
			}
			say("heard %s", strings.ReplaceAll(w, "\n", " "))
			ready = ready || strings.HasPrefix(w, "READY=1")
		case <-tick.C:
			if quiet++; ready && quiet == silence {
				say("silent for %d s: SIGABRT", silence)
				_ = c.Process.Signal(syscall.SIGABRT)
				time.AfterFunc(abort, func() { _ = c.Process.Kill() })
			}
		}
	}
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s watched: "+format+"\n", append([]any{time.Now().Format(clock)}, args...)...)
}
