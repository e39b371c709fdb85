package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"sync"
	"time"
)

// firstReport is the outcome of one request.
type firstReport struct {
	URL   string  `json:"url"`
	Ms    float64 `json:"ms"`
	Error string  `json:"error,omitempty"`
}

// first fetches URLs, each over a connection of its own, and says how long each took: no start of a program is part of it.
func first(ctx context.Context, args []string) error {
	fs := newFlags("first")
	timeout := fs.Duration("timeout", 10*time.Second, "for each")
	every := fs.Duration("every", time.Second, "time between the beginnings of two")
	urls, err := parse(fs, args, -1)
	if err != nil {
		return err
	}
	out := make([]firstReport, len(urls))
	var wg sync.WaitGroup
	for i, url := range urls {
		if i > 0 {
			time.Sleep(*every)
		}
		wg.Go(func() {
			began := time.Now()
			ctx, cancel := context.WithTimeout(ctx, *timeout)
			defer cancel()
			err := fetch(ctx, client(0), url, io.Discard)
			out[i] = firstReport{URL: url, Ms: float64(time.Since(began).Microseconds()) / 1000}
			if err != nil {
				out[i].Error = err.Error()
			}
		})
	}
	wg.Wait()
	return json.NewEncoder(os.Stdout).Encode(out)
}
