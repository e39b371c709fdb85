package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/tier"
)

// blocked is the relay with the configuration that its argument names. It blocks the loop whose name is in the file hang beside it.
func blocked() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	trigger := filepath.Join(filepath.Dir(os.Args[1]), "hang")
	c, err := loadConfig(os.Args[1])
	c.block = func(loop string) {
		if name, err := os.ReadFile(trigger); err == nil && string(name) == loop && os.Remove(trigger) == nil {
			log.Info("blocked", "at", time.Now().UnixMilli())
			select {}
		}
	}
	if err == nil {
		err = run(context.Background(), c, os.Stdout, log)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(2)
}

// TestHungRelay: a relay whose loop hangs is named by its liveness probe and its log, ends by itself, and serves members again
// once it is started again.
func TestHungRelay(t *testing.T) {
	tier.Long(t)
	for _, loop := range []string{"membership", "connections"} {
		t.Run(loop, func(t *testing.T) {
			t.Parallel()
			hung(t, loop)
		})
	}
}

func hung(t *testing.T, loop string) {
	dir := t.TempDir()
	n := newNode(t)
	writeFile(t, filepath.Join(dir, "cluster.yaml"), clusterYAML(n))
	r := runRelay(t, dir) // chooses its ports
	if code := r.stop(); code != 0 {
		t.Fatal(code)
	}
	at := fmt.Sprintf("stateDir: %s/state\nlisten: [%s]\nmetricsAddress: %s\nmembership: {file: %s/cluster.yaml}\n", dir, r.info.Addrs[0], r.metrics, dir)
	writeFile(t, filepath.Join(dir, "relay.yaml"), at)
	log := &logBuffer{}
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	var starts atomic.Int32
	go func() { // what a service manager does
		defer close(done)
		for ctx.Err() == nil {
			c := exec.CommandContext(ctx, "blocked-relay", filepath.Join(dir, "relay.yaml"))
			c.Stderr = log
			starts.Add(1)
			_ = c.Run()
		}
	}()
	defer func() { end(); <-done }()
	fair.Eventually(t, deadline, "it serves", func() error { return r.reserve(n) })
	writeFile(t, filepath.Join(dir, "hang"), loop)
	r.write(clusterYAML(n, newNode(t)))
	fair.Eventually(t, deadline, "it is blocked", fair.True(func() bool { return strings.Contains(log.String(), "msg=blocked") }))
	named := fair.Eventually(t, 35*time.Second, "it is named", fair.True(func() bool { return strings.Contains(log.String(), loop+`" since=`) }))
	if code, text := r.get("/healthz"); code != 503 || !strings.Contains(text, loop) {
		t.Errorf("/healthz: %d %s", code, text)
	}
	back := named + fair.Eventually(t, 45*time.Second-named, "members are served again", func() error {
		if starts.Load() < 2 {
			return errors.New("it has not started again: " + log.String())
		}
		return errors.Join(n.Network().ClosePeer(r.info.ID), r.reserve(n))
	})
	t.Logf("%s: named after %.1f s, serves again after %.1f s", loop, named.Seconds(), back.Seconds())
}
