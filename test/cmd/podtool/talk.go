package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"time"
)

// talk gives back each line of standard input until it ends, or says a numbered line again and again.
func talk(ctx context.Context, args []string) error {
	fs := newFlags("talk")
	every := fs.Duration("every", 0, "say a line each time; 0 gives back standard input")
	if _, err := parse(fs, args, 0); err != nil {
		return err
	}
	if *every == 0 {
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			fmt.Println("you said", in.Text())
		}
		return in.Err()
	}
	tick := time.NewTicker(*every)
	defer tick.Stop()
	for n := 1; ; n++ {
		fmt.Println("line", n)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
