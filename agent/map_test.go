package main

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"edgemesh/internal/cli"
)

// The map listens on the loopback and on the mesh address; anywhere else its token would travel in the clear.
func TestMapAddress(t *testing.T) {
	mesh := []string{"10.244.1.1", "fd00::1"}
	for listen, want := range map[string]string{"127.0.0.1:9475": "127.0.0.1:9475", "[::1]:0": "[::1]:0", "mesh:9475": "10.244.1.1:9475"} {
		if got, err := mapAddress(listen, mesh); err != nil || got != want {
			t.Errorf("%s: %s, %v", listen, got, err)
		}
	}
	for listen, want := range map[string]string{"0.0.0.0:9475": "ssh -L", ":9475": "ssh -L", "192.168.1.2:9475": "ssh -L", "9475": "must be", "example.org:1": "must be"} {
		if got, err := mapAddress(listen, mesh); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %s, %v", listen, got, err)
		}
	}
	if _, err := mapAddress("mesh:9475", nil); err == nil || !strings.Contains(err.Error(), "no mesh address yet") {
		t.Error(err)
	}
}

// Without an agent the command says how to start one; a bad token is the operator's to fix.
func TestMapRefuses(t *testing.T) {
	var out, complaint strings.Builder
	if code := cli.Execute(t.Context(), newRoot(), []string{"map", "--runtime-dir", t.TempDir()}, &out, &complaint); code != cli.ExitFailed ||
		!strings.Contains(complaint.String(), "systemctl start edgemesh-agent") {
		t.Errorf("%d %s", code, complaint.String())
	}
	complaint.Reset()
	if code := cli.Execute(t.Context(), newRoot(), []string{"map", "--token-file", "/dev/null"}, &out, &complaint); code != cli.ExitUsage ||
		!strings.Contains(complaint.String(), "at least 16 characters") {
		t.Errorf("%d %s", code, complaint.String())
	}
}

// With --until-eof the map ends when its standard input does, and not before.
func TestMapUntilEOF(t *testing.T) {
	in, out := io.Pipe()
	ctx := untilEOF(t.Context(), in)
	fmt.Fprintln(out, "x")
	if ctx.Err() != nil {
		t.Error("it has ended before")
	}
	out.Close()
	<-ctx.Done()
}

// A controller that is started with --map, which is gone, starts all the same, and its log says what is used in its place.
func TestControllerWithMap(t *testing.T) {
	c := newController()
	var said strings.Builder
	c.SetErr(&said)
	c.Flags().SetOutput(&said)
	if err := c.ParseFlags([]string{"--map", "127.0.0.1:9475"}); err != nil || !strings.Contains(said.String(), "kubectl edgemesh map NODE") {
		t.Errorf("%v: %s", err, said.String())
	}
}
