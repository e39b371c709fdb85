package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"edgemesh/internal/membership/kube/api"
)

// squatter is the user of a program that took the port of an API cache.
const squatter = 65534

// TestMain is also that program, which answers requests on a listener that it gets as file 3, and prints those.
func TestMain(m *testing.M) {
	if os.Getenv("SQUATTER") == "" {
		os.Exit(m.Run())
	}
	f := os.NewFile(3, "listener")
	l, err := net.FileListener(f)
	f.Close()
	if err != nil {
		panic(err)
	}
	if os.Getenv("SQUATTER") == "leaves" { // accepts, and no longer listens
		c, err := l.Accept()
		if err != nil {
			panic(err)
		}
		l.Close()
		fmt.Println("accepted")
		for r := bufio.NewReader(c); ; {
			req, err := http.ReadRequest(r)
			if err != nil {
				os.Exit(0)
			}
			fmt.Println(req.Method, req.Header.Get("Authorization"))
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{\"name\":\"anybody\"}")
		}
	}
	serve := func() {
		panic(http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Println(r.Method, r.Header.Get("Authorization"))
			_ = json.NewEncoder(w).Encode(asker{Name: "anybody"})
		})))
	}
	if os.Getenv("SQUATTER") == "queries itself" {
		go serve()
		c, err := New(Access{Server: "http://" + l.Addr().String()}, "test/1", nil)
		if err == nil {
			err = c.Get(context.Background(), "/x", new(asker))
		}
		fmt.Println(err)
		os.Exit(0)
	}
	serve()
}

// squat has a program of another user serve l as how says. What it prints comes from out.
func squat(t *testing.T, l *net.TCPListener, how string, uid int) (out *bufio.Reader) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: another user's program needs root")
	}
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{"SQUATTER=" + how}
	cmd.ExtraFiles = []*os.File{f}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}, Pdeathsig: syscall.SIGKILL}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return bufio.NewReader(pipe)
}

func listenAt(t *testing.T, network, addr string) *net.TCPListener {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Skip("SKIPPED: ", err) // no IPv6
	}
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

// A cache's port on loopback is taken by a program of another user: nothing it answers counts, and it gets no credential. One of
// root's or of the configured user's is believed.
func TestPortTakenByAnotherUser(t *testing.T) {
	for name, x := range map[string]struct {
		network, addr string
		uid, localUID int
		good          bool
	}{
		"another user's":        {network: "tcp4", addr: "127.0.0.1:0", uid: squatter},
		"another's, IPv6":       {network: "tcp6", addr: "[::1]:0", uid: squatter},
		"another's, dual-stack": {network: "tcp", addr: "[::]:0", uid: squatter},
		"the configured one's":  {network: "tcp4", addr: "127.0.0.1:0", uid: squatter, localUID: squatter, good: true},
		"not the configured":    {network: "tcp4", addr: "127.0.0.1:0", uid: squatter, localUID: 990},
		"root's":                {network: "tcp4", addr: "127.0.0.1:0", good: true},
		"root's, dual-stack":    {network: "tcp", addr: "[::]:0", good: true},
	} {
		t.Run(name, func(t *testing.T) {
			l := listenAt(t, x.network, x.addr)
			got := squat(t, l, "serves", x.uid)
			addr := strings.Replace(l.Addr().String(), "[::]", "127.0.0.1", 1)
			c, err := New(Access{Server: "http://" + addr, LocalUID: x.localUID}, "test/1", nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			var out asker
			err = c.Get(t.Context(), "/x", &out)
			if x.good {
				if err != nil || out.Name != "anybody" {
					t.Errorf("%+v, %v", out, err)
				}
				return
			}
			if !errors.Is(err, errOwner) || out.Name != "" || !strings.Contains(err.Error(), fmt.Sprint("runs as user ", squatter)) ||
				!strings.Contains(err.Error(), fmt.Sprint("membership.kubernetes.localUID: ", squatter)) {
				t.Errorf("%+v, %v", out, err)
			}
			received(t, got)
		})
	}
}

// A process that is not root's trusts programs of its own user no more than any other's: the relay in the cluster runs as 65532,
// as many pods of the host network do.
func TestOwnUserIsAnother(t *testing.T) {
	if s, err := squat(t, listenAt(t, "tcp4", "127.0.0.1:0"), "queries itself", squatter).ReadString('\n'); !strings.Contains(s, fmt.Sprint("runs as user ", squatter)) {
		t.Errorf("%q, %v", s, err)
	}
}

// received fails if a program has received a request within a moment.
func received(t *testing.T, got *bufio.Reader) {
	t.Helper()
	line := make(chan string, 1)
	go func() { s, _ := got.ReadString('\n'); line <- s }()
	select {
	case s := <-line:
		if s != "" {
			t.Errorf("it received %q", s)
		}
	case <-time.After(200 * time.Millisecond):
	}
}

// The squatter accepts and closes its listener, and root binds the port: the listener is root's, who accepted is not.
func TestListenerIsNotWhoAccepts(t *testing.T) {
	for _, uid := range []int{squatter, 0} {
		t.Run(fmt.Sprint("user ", uid), func(t *testing.T) {
			l := listenAt(t, "tcp4", "127.0.0.1:0")
			addr := l.Addr().String()
			got := squat(t, l, "leaves", uid)
			l.Close() // only the program has it now
			kubeconfig := write(t, t.TempDir()+"/kubeconfig", config(`server: "http://`+addr+`"`, "token: secret"))
			c, err := New(Access{Kubeconfig: kubeconfig}, "test/1", nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			// The connection is open when root takes the port, and nobody has looked whose it is.
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{ConnectDone: func(string, string, error) {
				if s, err := got.ReadString('\n'); s != "accepted\n" {
					t.Errorf("%q, %v", s, err)
				}
				root, err := net.Listen("tcp4", addr)
				if err != nil {
					t.Error(err)
					return
				}
				t.Cleanup(func() { root.Close() })
			}})
			var out asker
			err = c.Get(ctx, "/x", &out)
			if uid == 0 {
				if s, _ := got.ReadString('\n'); err != nil || out.Name != "anybody" || s != "GET \n" { // client-go sends tokens by TLS only
					t.Errorf("root's program: %+v, %v, received %q", out, err, s)
				}
				return
			}
			if !errors.Is(err, errOwner) {
				t.Errorf("%+v, %v", out, err)
			}
			received(t, got)
		})
	}
}

// A socket that nobody has accepted yet reads as root's: it does not count, however long that takes.
func TestNotAcceptedIsNobodys(t *testing.T) {
	l := listenAt(t, "tcp4", "127.0.0.1:0")
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := checkOwner(ctx, c, 0); !errors.Is(err, errOwner) || !strings.Contains(err.Error(), "no program accepts it") {
		t.Errorf("not accepted: %v", err)
	} else if says := new(Client).Explain(t.Context(), api.Nodes(), err).Error(); strings.Contains(says, "uplink") {
		t.Errorf("the remedy for a cache that hangs: %s", says)
	}
	late := make(chan error, 1)
	go func() { late <- checkOwner(t.Context(), c, 0) }()
	time.Sleep(50 * time.Millisecond) // sleep: nobody accepts it for a while
	a, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := <-late; err != nil {
		t.Errorf("accepted late: %v", err)
	}
}

// Without TLS there is no way to know who answers on another host.
func TestPlainIsOnThisHost(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	dial := owned(func(context.Context, string, string) (net.Conn, error) { return elsewhere{here}, nil }, 0)
	if _, err := dial(t.Context(), "tcp", "10.0.0.1:8080"); !errors.Is(err, errOwner) || !strings.Contains(err.Error(), "10.0.0.1:8080 is not on this host") {
		t.Errorf("%v", err)
	}
	if _, err := here.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the connection is still open: %v", err)
	}
}

// elsewhere is a connection to another host.
type elsewhere struct{ net.Conn }

func (elsewhere) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 40000} }
func (elsewhere) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 8080} }
