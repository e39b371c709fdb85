package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/rogpeppe/go-internal/testscript"

	"edgemesh/internal/keyfile"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"edgemesh-relay": main, "blocked-relay": blocked})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exitcode": exitCode,
			"expand":   expand,
			"nodekey":  nodeKey,
			"busyport": busyPort,
			"lockdir":  lockStateDir,
		},
	})
}

// exitCode CODE COMMAND... runs the command and wants this exit code.
func exitCode(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	if code := fmt.Sprint(err); code != fmt.Sprintf("exit status %d", want) {
		ts.Fatalf("%v, want exit status %d", err, want)
	}
}

// expand FILE replaces $WORK in it.
func expand(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[0])
	text := strings.ReplaceAll(ts.ReadFile(args[0]), "$WORK", ts.Getenv("WORK"))
	ts.Check(os.WriteFile(path, []byte(text), 0o600))
}

// nodeKey STATEDIR FILE makes FILE a membership in which the key is a node's.
func nodeKey(ts *testscript.TestScript, _ bool, args []string) {
	key, err := keyfile.Load(filepath.Join(ts.MkAbs(args[0]), keyfile.Name))
	ts.Check(err)
	id, err := peer.IDFromPrivateKey(key)
	ts.Check(err)
	text := fmt.Sprintf("podCIDRs: [10.244.0.0/16]\nnodes: [{name: edge-1, peerID: %s, podCIDRs: [10.244.1.0/24]}]\n", id)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(text), 0o600))
}

// lockStateDir STATEDIR COMMAND... runs the command while the lock is held.
func lockStateDir(ts *testscript.TestScript, _ bool, args []string) {
	unlock, err := lockDir(ts.MkAbs(args[0]))
	ts.Check(err)
	defer unlock()
	exitCode(ts, false, args[1:])
}

// busyPort CONFIG makes the configuration listen on a port that is in use.
func busyPort(ts *testscript.TestScript, _ bool, args []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { l.Close() })
	text := strings.Replace(ts.ReadFile(args[0]), "/tcp/0", fmt.Sprintf("/tcp/%d", l.Addr().(*net.TCPAddr).Port), 1)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}
