package main

import (
	"flag"
	"fmt"
	"io"
)

// parse parses args, which must end in exactly n operands; n < 0: in at least one.
func parse(fs *flag.FlagSet, args []string, n int) ([]string, error) {
	fs.SetOutput(io.Discard) // the caller prints the error and the usage
	if err := fs.Parse(args); err != nil {
		return nil, fmt.Errorf("%w: %w", errUsage, err)
	}
	if n >= 0 && fs.NArg() != n || fs.NArg() == 0 && n < 0 {
		return nil, fmt.Errorf("%w: %d operands, want %d", errUsage, fs.NArg(), n)
	}
	return fs.Args(), nil
}

func newFlags(name string) *flag.FlagSet { return flag.NewFlagSet(name, flag.ContinueOnError) }
