package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	servePort = 9376 // HTTP over TCP, echo over UDP
	bulkPort  = 9377 // one request line, see serveBulk

	// whoami is answered with the sender's address and port instead of an echo.
	whoami = "who am I?"
)

// server answers all protocols of one pod.
type server struct {
	name string

	mu   sync.Mutex
	seen map[string]int // datagrams by source address
}

func serve(ctx context.Context, args []string) error {
	fs := newFlags("serve")
	name := fs.String("name", "", "what to answer")
	port := fs.Int("port", servePort, "of HTTP and UDP; bulk is on the next one")
	if _, err := parse(fs, args, 0); err != nil {
		return err
	}
	s := &server{name: *name, seen: map[string]int{}}
	web, err := net.Listen("tcp", ":"+strconv.Itoa(*port))
	if err != nil {
		return err
	}
	bulk, err := net.Listen("tcp", ":"+strconv.Itoa(*port+1))
	if err != nil {
		return err
	}
	echo, err := net.ListenUDP("udp", &net.UDPAddr{Port: *port})
	if err != nil {
		return err
	}
	// A forged datagram of 60 000 bytes arrives in 41 fragments at the same time.
	if err := echo.SetReadBuffer(4 << 20); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", s.hello)
	mux.HandleFunc("/seen", s.sources)
	failed := make(chan error, 3)
	go func() { failed <- (&http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}).Serve(web) }()
	go func() { failed <- s.acceptBulk(bulk) }()
	go func() { failed <- s.echoUDP(echo) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil // the process ends, and everything with it
	}
}

// hello answers with the pod's name and the client's address.
func (s *server) hello(w http.ResponseWriter, r *http.Request) {
	client, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeJSON(w, map[string]string{"name": s.name, "client": client.Addr().Unmap().String()})
}

// sources answers with the number of datagrams seen by source address.
func (s *server) sources(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	writeJSON(w, s.seen)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client is gone when this fails
}

func (s *server) echoUDP(c *net.UDPConn) error {
	buf := make([]byte, 65536)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.seen[from.Addr().Unmap().String()]++
		s.mu.Unlock()
		answer := buf[:n]
		if string(answer) == whoami {
			answer = []byte(netip.AddrPortFrom(from.Addr().Unmap(), from.Port()).String())
		}
		_, _ = c.WriteToUDPAddrPort(answer, from) // the sender counts what is missing
	}
}

func (s *server) acceptBulk(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			if err := s.serveBulk(c); err != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n", c.RemoteAddr(), err)
			}
		}()
	}
}

// serveBulk reads a request line:
//
//	push      the client sends until it half-closes; answered by a bulkReport
//	pull N    N bytes are sent, then their SHA-256 (32 bytes)
//	echo      everything comes back
//	answer    one byte is sent, then each that comes goes back
func (s *server) serveBulk(c net.Conn) error {
	in := bufio.NewReaderSize(c, 256<<10)
	line, err := in.ReadString('\n')
	if err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	verb, arg, _ := strings.Cut(strings.TrimSpace(line), " ")
	switch verb {
	case "push":
		sum := sha256.New()
		start := time.Now()
		n, err := io.Copy(sum, in)
		if err != nil {
			return fmt.Errorf("push after %d bytes: %w", n, err)
		}
		return json.NewEncoder(c).Encode(bulkReport{
			Bytes:   n,
			SHA256:  hex.EncodeToString(sum.Sum(nil)),
			Seconds: time.Since(start).Seconds(),
		})
	case "drop":
		start := time.Now()
		n, err := io.Copy(io.Discard, in)
		if err != nil {
			return fmt.Errorf("drop after %d bytes: %w", n, err)
		}
		return json.NewEncoder(c).Encode(bulkReport{Bytes: n, Seconds: time.Since(start).Seconds()})
	case "pull":
		n, err := strconv.ParseInt(arg, 10, 64)
		if err != nil {
			return fmt.Errorf("pull: %w", err)
		}
		sum := sha256.New()
		if err := generate(io.MultiWriter(c, sum), n); err != nil {
			return fmt.Errorf("pull: %w", err)
		}
		_, err = c.Write(sum.Sum(nil))
		return err
	case "answer":
		return serveAnswers(c, in)
	case "echo":
		_, err := io.Copy(c, in)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		return err
	}
	return fmt.Errorf("unknown request %q", line)
}
