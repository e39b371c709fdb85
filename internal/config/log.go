package config

import (
	"edgemesh/internal/logs"
	"edgemesh/internal/membership/mesh"
)

// Log checks the `log` key of the agent's and the relay's files.
func Log(bad *mesh.Invalid, c logs.Config) logs.Config {
	format, level := c.Check()
	if format != "" {
		bad.Addf("log.format", "%s", format)
	}
	if level != "" {
		bad.Addf("log.level", "%s", level)
	}
	return c
}
