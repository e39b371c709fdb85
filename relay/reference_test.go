package main

import (
	"testing"

	"edgemesh/test/reference"
)

// TestReference: docs/reference has the help of every command.
func TestReference(t *testing.T) {
	reference.Compare(t, "../docs/reference/edgemesh-relay.md", reference.Commands(newRoot()))
}
