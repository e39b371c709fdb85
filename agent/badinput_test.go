package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/internal/cli"
)

// querying are the commands that query the running agent, each with what else it needs.
var querying = [][]string{
	{"status"}, {"status", "edge-2"}, {"status", "--json"}, {"ping", "edge-2"}, {"ping", "edge-2", "--json"}, {"ping", "edge-2", "--count", "0"},
	{"ping", "edge-2", "--until-direct"}, {"doctor"}, {"doctor", "10.244.2.7"}, {"doctor", "--json"}, {"capture", "--duration", "1s"}, {"capture", "--write", "-", "--duration", "1s"},
	{"map", "--listen", "127.0.0.1:0"}, {"log-level"}, {"log-level", "debug"},
}

// plainly fails if a text can do something to a terminal, or is long.
func plainly(t *testing.T, what, text string) {
	t.Helper()
	if strings.ContainsAny(text, "\x1b\x07\r\u202e") || len(text) > 4<<10 {
		t.Errorf("%s: %d bytes: %q", what, len(text), text[:min(len(text), 300)])
	}
}

// Without an agent every command that queries it says so, and how to start one; doctor says it as a finding.
func TestAgentNotRunning(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(t.TempDir(), "left") // by a dead agent
	if err := os.Mkdir(left, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(left, control.SocketFile)})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for _, at := range []string{dir, filepath.Join(dir, "none"), left} {
		for _, args := range querying {
			code, out, errOut := command(t, append(slices.Clone(args), "--runtime-dir", at)...)
			for _, want := range []string{"no agent is running here", "systemctl start edgemesh-agent", "edgemesh-agent run", "--runtime-dir"} {
				if code != cli.ExitFailed || !strings.Contains(out+errOut, want) {
					t.Errorf("%v: %d, %q is missing: %s%s", args, code, want, out, errOut)
				}
			}
		}
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{file, filepath.Join(dir, strings.Repeat("x", 120))} { // no socket can be there
		if code, _, errOut := command(t, "status", "--runtime-dir", at); code != cli.ExitFailed || !strings.Contains(errOut, "--runtime-dir") || strings.Contains(errOut, "http://") {
			t.Errorf("%d %s", code, errOut)
		}
	}
}

// serving answers on a socket as an agent would, until the test ends.
func serving(t *testing.T, h http.Handler) (dir string) {
	t.Helper()
	dir = t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, control.SocketFile))
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); <-done })
	return dir
}

// oldStatus is what an agent of the first release says, which knows no request but status, ping and doctor.
const oldStatus = `{"node":"edge-1","peerID":"12D3KooWold","addresses":["10.244.1.1"],"relays":[{"peerID":"R","addr":"/ip4/5.5.5.5/tcp/1","connected":true,"reserved":true}],
 "peers":[{"node":"edge-2","peerID":"P","podCIDRs":["10.244.2.0/24"],"path":"relayed","transport":"tcp","rttMs":1.5,"since":"2026-01-01T00:00:00Z","reason":"","txBytes":1,"rxBytes":2,"drops":0}]}`

func oldAgent() http.Handler {
	mux := http.NewServeMux()
	say := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
	}
	mux.HandleFunc("GET /v1/status", say(oldStatus))
	mux.HandleFunc("POST /v1/ping", say(`{"target":"edge-2","node":"edge-2","path":"relayed","transport":"tcp","sent":1,"received":1,"minMs":1,"avgMs":1,"maxMs":1,"probes":[{"seq":1,"rttMs":1}]}`))
	mux.HandleFunc("POST /v1/doctor", say(`[{"check":"key","severity":"ok","detail":"fine"}]`))
	return mux
}

// An agent of an older release is shown as far as it answers; what it does not know is said, with what to do.
func TestOldAgent(t *testing.T) {
	dir := serving(t, oldAgent())
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"status"}, 0, "(version unknown)"},
		{[]string{"status", "edge-2"}, 0, "relayed over tcp"},
		{[]string{"status", "--json"}, 0, `"node": "edge-1"`},
		{[]string{"ping", "edge-2"}, 0, "1 sent, 1 received"},
		{[]string{"ping", "edge-2", "--count", "0"}, cli.ExitFailed, "older release"},
		{[]string{"ping", "edge-2", "--until-direct"}, cli.ExitFailed, "older release"},
		{[]string{"doctor"}, 0, "OK: 1 check well"},
		{[]string{"doctor", "--verbose"}, 0, "key: fine"},
		{[]string{"doctor", "10.244.2.7"}, cli.ExitFailed, "older release than this command: restart it"},
		{[]string{"log-level"}, cli.ExitFailed, "older release"},
		{[]string{"log-level", "debug"}, cli.ExitFailed, "older release"},
		{[]string{"map", "--listen", "127.0.0.1:0"}, cli.ExitFailed, "older release"},
	} {
		code, out, errOut := command(t, append(c.args, "--runtime-dir", dir)...)
		if code != c.code || !strings.Contains(out+errOut, c.says) || strings.Contains(errOut, "404") {
			t.Errorf("%v: %d %s%s, want %d %q", c.args, code, out, errOut, c.code, c.says)
		}
	}
}

// Whatever answers on the socket, the commands end, say what is wrong in a line or two, and nothing reaches the terminal that moves its cursor.
func TestRubbishOnTheSocket(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"nothing":      func(http.ResponseWriter, *http.Request) {},
		"no JSON":      func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "\x1b[2J<html>") },
		"another type": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `"x"`) },
		"null":         func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `null`) },
		"empty":        func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{}`) },
		"other fields": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"peers":null,"received":3,"sent":-1}`)
		},
		"500": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "\x1b]0;x\x07", http.StatusInternalServerError)
		},
		"a sharp error": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":"\u001b[31m\u202efake"}`)
		},
		"the end": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"half": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, `{"node":"edge-1","probe":{`)
		},
	} {
		dir := serving(t, h)
		for _, args := range querying {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			var out, errOut strings.Builder
			code := cli.Execute(ctx, newRoot(), append(slices.Clone(args), "--runtime-dir", dir), &out, &errOut)
			if ctx.Err() != nil {
				t.Errorf("%s: %v does not end", name, args)
			}
			cancel()
			if code == 0 && !slices.Contains([]string{"null", "empty", "other fields", "another type"}, name) || code != 0 && out.Len()+errOut.Len() == 0 {
				t.Errorf("%s: %v: %d, %q %q", name, args, code, out.String(), errOut.String())
			}
			plainly(t, fmt.Sprintf("%s: %v", name, args), out.String()+errOut.String())
		}
	}
}

// known is an agent that has two members.
type known struct{ status control.Status }

func newKnown() known {
	return known{control.Status{
		Node: "edge-1", Pools: []control.Pool{{Blocks: []string{"10.244.1.0/24"}}},
		Peers: []control.PeerStatus{{Node: "edge-2", Site: "oslo", Path: "idle", PodCIDRs: []string{"10.244.2.0/24"}}, {Node: "edge-3", Path: "idle", PodCIDRs: []string{"10.244.3.0/24"}}},
	}}
}

func (k known) Status(bool) control.Status { return k.status }
func (known) Ping(context.Context, control.PingRequest, func(control.PingResult)) (control.PingReply, error) {
	return control.PingReply{}, errors.New("8.8.8.8: no such member: it is outside the cluster's pod ranges [10.244.0.0/16]\x1b")
}
func (known) Doctor(context.Context) []findings.Finding { return nil }
func (known) Explain(context.Context, string) ([]findings.Finding, error) {
	return nil, errors.New("egde-2: no such member (did you mean edge-2?)\x1b")
}
func (known) Policies(string) control.Policies { return control.Policies{} }

func (known) LogLevel() *slog.LevelVar { return new(slog.LevelVar) }
func (known) Observe(context.Context, func(any) error) error {
	return errors.New("no membership yet\x1b")
}

// Names and addresses that nobody has are said to be none, with those that are close.
func TestUnknownNames(t *testing.T) {
	dir := t.TempDir()
	s, err := control.Serve(dir, newKnown(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, c := range []struct {
		line, says string
		code       int
	}{
		{"status egde-2", "egde-2: no such member (did you mean edge-2", cli.ExitFailed},
		{"status nobody-at-all", "nobody-at-all: no such member\n", cli.ExitFailed},
		{"status 10.244.2.9", "it is an address of node edge-2; `edgemesh-agent doctor 10.244.2.9`", cli.ExitFailed},
		{"status 8.8.8.8", "an address in no other node's block", cli.ExitFailed},
		{"status --site osol", "no peer is at this site (did you mean oslo?)", cli.ExitFailed},
		{"status --path relaid", "must be one of none, relayed", cli.ExitUsage},
		{"status --path relaid", "(did you mean relayed?)", cli.ExitUsage},
		{"log-level wran", "(did you mean warn?)", cli.ExitUsage},
		{"ping 8.8.8.8", "outside the cluster's pod ranges", cli.ExitFailed},
		{"ping 8.8.8.8 --json", "outside the cluster's pod ranges", cli.ExitFailed},
		{"ping 8.8.8.8 --count 0", "outside the cluster's pod ranges", cli.ExitFailed},
		{"ping", "NODE|POD-IP is missing", cli.ExitUsage},
		{"doctor egde-2", "did you mean edge-2", cli.ExitFailed},
		{"capture --peer egde-2", "did you mean edge-2", cli.ExitFailed},
		{"capture --pod 8.8.8.8", "--pod: 8.8.8.8 is not in this node's blocks: it is an address in no other node's block", cli.ExitFailed},
		{"capture --pod 10.244.3.7 --peer edge-2", "--pod: 10.244.3.7 is not in this node's blocks: it is an address of node edge-3", cli.ExitFailed},
		{"capture --pod web-0", "not an IP address", cli.ExitUsage},
		{"log-level loud", "not one of debug", cli.ExitUsage},
		{"map --listen 0.0.0.0:1", "ssh -L", cli.ExitUsage},
		{"map --listen mesh:1", "no mesh address yet", cli.ExitUsage},
		{"map --listen 127.0.0.1:0", "no membership yet", cli.ExitFailed},
		{"map --token-file /nowhere/x", "--token-file", cli.ExitUsage},
	} {
		code, out, errOut := command(t, append(strings.Fields(c.line), "--runtime-dir", dir)...)
		if code != c.code || !strings.Contains(errOut, c.says) || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%s: %d %q, want %d %q", c.line, code, errOut, c.code, c.says)
		}
		plainly(t, c.line, out+errOut)
	}
	for line, says := range map[string]string{
		"staus": "did you mean status?", "conectivity-test": "did you mean connectivity-test?", "ping a --tiemout 3s": "did you mean --timeout?",
		"ping a --count x": `--count "x": must be a whole number`, "ping a --count -1": `--count "-1": must be a whole number from 0 to `,
		"capture --count -1": `--count "-1": must be 0 or more`, "capture --duration 0s": `--duration "0s": must be longer than 0`, "connectivity-test --nodes a,b": "run `kubectl edgemesh connectivity-test` where kubectl is", "init --node-name=Bad_Name --dir " + dir: "nothing is written: --node-name",
		"netcheck --relay nonsense": "--relay", "netcheck --membership /nowhere/c.yaml": "/nowhere/c.yaml", "connectivity try": "NAME=URL is missing",
		"node-ip --config /nowhere/a.yaml": "/nowhere/a.yaml", "run --config /nowhere/a.yaml": "create it, or give its path with --config",
	} {
		if code, _, errOut := command(t, strings.Fields(line)...); code != cli.ExitUsage || !strings.Contains(errOut, says) {
			t.Errorf("%s: %d %q, want %q", line, code, errOut, says)
		}
	}
}

// lockedDir is set for the part of TestNoPermission that is another user.
const lockedDir = "EDGEMESH_TEST_LOCKED"

// A user who may not query the agent, nor write where a command writes, learns so and what to do; nothing is left half done.
func TestNoPermission(t *testing.T) {
	locked := os.Getenv(lockedDir)
	if locked == "" && os.Geteuid() == 0 {
		asNobody(t)
		return
	}
	if locked == "" {
		locked = filepath.Join(t.TempDir(), "locked")
		if err := os.Mkdir(locked, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range querying {
		code, out, errOut := command(t, append(slices.Clone(args), "--runtime-dir", locked)...)
		if code != cli.ExitFailed || out != "" || !strings.Contains(errOut, "agent.sock: permission denied (run as root)") {
			t.Errorf("%v: %d %q %q", args, code, out, errOut)
		}
	}
	free := t.TempDir()
	for _, c := range []struct{ line, says string }{
		{"init --dir " + locked + "/x --state-dir " + free + " --node-name a", "run as root"},
		{"init --dir " + free + " --state-dir " + locked + "/x --node-name a", "run as root"},
		{"id --state-dir " + locked + "/x", "run as root"},
		{"run --config " + locked + "/a.yaml", "run as root"},
		{"netcheck --config " + locked + "/a.yaml", "run as root"},
		{"node-ip --runtime-dir " + locked + " --state-dir " + locked, "permission denied"},
		{"man " + locked + "/man", "permission denied"},
		{"cleanup", "not root"},
		{"install", "not root"},
		{"uninstall", "not root"},
	} {
		code, out, errOut := command(t, strings.Fields(c.line)...)
		if code == 0 || !strings.Contains(errOut, c.says) || out != "" {
			t.Errorf("%s: %d %q %q, want %q", c.line, code, out, errOut, c.says)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // a relay, as far as netcheck goes with it over TCP
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "\x13/multistream/1.0.0\n")
			_, _ = io.Copy(io.Discard, c)
			c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	code, out, errOut := command(t, "netcheck", "--relay", "/ip4/127.0.0.1/tcp/"+port, "--port-mapping=false", "--proxy", "none", "--config", filepath.Join(free, "none"))
	if code != cli.ExitUsage { // a configuration that is named has to exist
		t.Errorf("netcheck: %d %s%s", code, out, errOut)
	}
	code, out, errOut = command(t, "netcheck", "--relay", "/ip4/127.0.0.1/tcp/"+port, "--port-mapping=false", "--proxy", "none", "--json")
	if code != 0 || strings.Contains(out+errOut, "SO_MARK") {
		t.Errorf("netcheck: %d %s%s", code, out, errOut)
	}
	if left, err := os.ReadDir(free); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// asNobody runs the test again as a user without rights.
func asNobody(t *testing.T) {
	t.Helper()
	base, err := os.MkdirTemp("", "agent") // t.TempDir is root's alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(self) // where it lies others may not look
	program, locked := filepath.Join(base, "test"), filepath.Join(base, "locked")
	if err := errors.Join(err, os.Chmod(base, 0o755), os.WriteFile(program, data, 0o600), os.Chmod(program, 0o755), os.Mkdir(locked, 0o700)); err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	c := exec.CommandContext(t.Context(), program, "-test.run=^TestNoPermission$", "-test.v")
	c.Dir, c.Env = "/", []string{lockedDir + "=" + locked, "PATH=" + os.Getenv("PATH"), "TMPDIR=/tmp"}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestNoPermission") {
		t.Errorf("%v\n%s", err, out)
	}
}

// status --check fails where something is broken, also when it shows one peer; it looks once.
func TestStatusCheck(t *testing.T) {
	dir := t.TempDir()
	k := newKnown()
	k.status.Findings = []findings.Finding{findings.Brokenf("tun", "start it", "it is down")}
	s, err := control.Serve(dir, k, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for args, want := range map[string]int{"": cli.ExitFailed, "edge-2": cli.ExitFailed, "edge-1": cli.ExitFailed, "--json edge-2": cli.ExitFailed, "--watch": cli.ExitUsage} {
		if code, out, errOut := command(t, append([]string{"status", "--check", "--runtime-dir", dir}, strings.Fields(args)...)...); code != want {
			t.Errorf("%s: %d, want %d: %s%s", args, code, want, out, errOut)
		}
	}
}
