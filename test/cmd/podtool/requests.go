package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"
)

// requestsReport is the outcome of requests.
type requestsReport struct {
	Count   int     `json:"count"` // those that were answered
	Failed  int     `json:"failed"`
	Seconds float64 `json:"seconds"`
	P50Us   float64 `json:"p50Us"`
	P99Us   float64 `json:"p99Us"`
}

// requests fetches a small page again and again, so many at a time, over connections that are kept or over a new one each.
func requests(ctx context.Context, args []string) error {
	fs := newFlags("requests")
	parallel := fs.Int("parallel", 64, "requests at a time")
	each := fs.Bool("new", false, "a new connection for each")
	duration := fs.Duration("duration", time.Second, "of all")
	host, err := parse(fs, args, 1)
	if err != nil {
		return err
	}
	if *parallel < 1 {
		return fmt.Errorf("%w: --parallel %d", errUsage, *parallel)
	}
	kept := *parallel
	if *each {
		kept = 0
	}
	from := client(kept)
	from.Timeout = 5 * time.Second
	url := "http://" + net.JoinHostPort(host[0], strconv.Itoa(servePort)) + "/"
	ctx, cancel := context.WithTimeout(ctx, *duration)
	defer cancel()
	var (
		mu    sync.Mutex
		wg    sync.WaitGroup
		times []time.Duration
		out   requestsReport
		start = time.Now()
	)
	for range *parallel {
		wg.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				err := fetch(ctx, from, url, io.Discard)
				took := time.Since(began)
				mu.Lock()
				switch {
				case err == nil:
					times = append(times, took)
				case ctx.Err() == nil: // else it was cut off by the end
					out.Failed++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	out.Count, out.Seconds = len(times), time.Since(start).Seconds()
	slices.Sort(times)
	if n := len(times); n > 0 {
		out.P50Us, out.P99Us = float64(times[n/2].Nanoseconds())/1e3, float64(times[n*99/100].Nanoseconds())/1e3
	}
	return report(out)
}
