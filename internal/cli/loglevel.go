package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"edgemesh/internal/logs"
)

// LogLevel is the command that shows the level of the log of the running thing, "agent" or "relay", or changes it. set changes
// it, unless level is "", and returns what it is.
func LogLevel(program, thing string, set func(ctx context.Context, level string) (string, error)) *cobra.Command {
	return &cobra.Command{
		Use:   "log-level [LEVEL]",
		Short: "Show or change the level of the running " + thing + "'s log",
		Long: fmt.Sprintf(`Show the level of the running %[1]s's log, or change it: debug, info, warn or error.
It stays until the %[1]s ends; log.level in the configuration is what it begins with.`, thing),
		Example:   fmt.Sprintf("  %[1]s log-level debug\n  %[1]s log-level", program),
		Args:      Optional("LEVEL"),
		ValidArgs: logs.Levels,
		RunE: func(c *cobra.Command, args []string) error {
			level := ""
			if len(args) > 0 {
				if _, err := logs.Parse(args[0]); err != nil {
					return Usage(fmt.Errorf("LEVEL: %w", err))
				}
				level = args[0]
			}
			is, err := set(c.Context(), level)
			if err == nil {
				_, err = fmt.Fprintln(c.OutOrStdout(), is)
			}
			return err
		},
	}
}
