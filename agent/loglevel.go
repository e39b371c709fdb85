package main

import (
	"context"

	"github.com/spf13/cobra"

	"edgemesh/internal/cli"
)

func newLogLevel() *cobra.Command {
	var f clientFlags
	c := cli.LogLevel(program, "agent", func(ctx context.Context, level string) (string, error) { return f.client().LogLevel(ctx, level) })
	f.addDir(c)
	return c
}
