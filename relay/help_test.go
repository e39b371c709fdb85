package main

import (
	"testing"

	"edgemesh/internal/cli/clitest"
)

func TestHelp(t *testing.T) { clitest.Help(t, newRoot) }
