package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"edgemesh/agent/fleet"
	"edgemesh/internal/cli"
	"edgemesh/internal/wake"
)

const (
	// tryFor is how long one target is tried: a path through a relay, and a Service that was made a moment ago, take seconds.
	tryFor = 30 * time.Second
	// tryOnce bounds one try.
	tryOnce = 5 * time.Second
	// tryPause is between two tries of one target.
	tryPause = time.Second
	// tryTogether is how many targets are tried at the same time.
	tryTogether = 16
)

// newConnectivity is what the pods of `kubectl edgemesh connectivity-test` run.
func newConnectivity() *cobra.Command {
	c := &cobra.Command{Use: "connectivity", Short: "What the pods of kubectl edgemesh connectivity-test run", Hidden: true}
	var port int
	serve := &cobra.Command{
		Use: "serve", Short: "Answer HTTP requests until interrupted", Args: cli.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
			if err != nil {
				return err
			}
			return serveHello(c.Context(), l)
		},
	}
	serve.Flags().IntVar(&port, "port", fleet.TestPort, "port")
	var file string
	try := &cobra.Command{
		Use: "try NAME=URL...", Short: "Fetch each URL, and write the results as JSON", Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Args("NAME=URL")(c, args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			out, err := tryAll(c.Context(), args, tryFor)
			if err != nil {
				return cli.Usage(err)
			}
			return writeTried(c.OutOrStdout(), file, out)
		},
	}
	try.Flags().StringVar(&file, "file", "", "write it to this file, too: a pod's /dev/termination-log")
	c.AddCommand(serve, try)
	return c
}

// newConnectivityTest points to where that command is.
func newConnectivityTest() *cobra.Command {
	return &cobra.Command{
		Use: "connectivity-test", Hidden: true, DisableFlagParsing: true,
		RunE: func(c *cobra.Command, _ []string) error {
			return cli.BadUsage(c.Root(), errors.New("connectivity-test makes pods through the API: run `kubectl edgemesh connectivity-test` where kubectl is; for this node alone, `edgemesh-agent doctor` and `edgemesh-agent ping NODE`"))
		},
	}
}

// serveHello answers on l until ctx ends.
func serveHello(ctx context.Context, l net.Listener) error {
	s := &http.Server{ReadHeaderTimeout: tryOnce, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// tryAll fetches all targets, NAME=URL each, again and again until one has answered or the time is over.
func tryAll(ctx context.Context, targets []string, patience time.Duration) (fleet.Tried, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client := &http.Client{Timeout: tryOnce, Transport: &http.Transport{DisableKeepAlives: true}} // no proxy: pods are near
	failed := make([]fleet.Failure, len(targets))
	slots := make(chan struct{}, tryTogether)
	var wg sync.WaitGroup
	for i, t := range targets {
		name, url, found := strings.Cut(t, "=")
		if !found {
			return fleet.Tried{}, fmt.Errorf("%s: NAME=URL is expected", t)
		}
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := tryUntil(ctx, client, url); err != nil {
				failed[i] = fleet.Failure{To: name, Error: err.Error()}
			}
		})
	}
	wg.Wait()
	out := fleet.Tried{Failed: slices.DeleteFunc(failed, func(f fleet.Failure) bool { return f.To == "" })}
	out.Answered = len(targets) - len(out.Failed)
	return out, nil
}

func tryUntil(ctx context.Context, client *http.Client, url string) error {
	for {
		err := tryURL(ctx, client, url)
		if err == nil {
			return nil
		}
		if !wake.Sleep(ctx, tryPause) {
			return err
		}
	}
}

func tryURL(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxHello))
	return err
}

// maxHello bounds an answer, maxTried what kubelet takes of a pod that has ended, in bytes.
const (
	maxHello = 1 << 10
	maxTried = 4 << 10
)

// writeTried prints what came of it, and writes as much of it to the file as kubelet takes.
func writeTried(w io.Writer, file string, out fleet.Tried) error {
	if err := json.NewEncoder(w).Encode(out); err != nil || file == "" {
		return err
	}
	for {
		b, err := json.Marshal(out)
		if err != nil {
			return err
		}
		if len(b) <= maxTried {
			return os.WriteFile(file, b, 0o600)
		}
		out.Failed = out.Failed[:len(out.Failed)-1]
		out.More++
	}
}
