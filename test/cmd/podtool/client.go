package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"
)

// get fetches a URL and prints the body, as curl does.
func get(ctx context.Context, args []string) error {
	fs := newFlags("get")
	timeout := fs.Duration("timeout", 2*time.Second, "for all of it")
	url, err := parse(fs, args, 1)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	return fetch(ctx, client(0), url[0], os.Stdout)
}

// client makes HTTP requests over connections that it keeps, so many of them, or over a new one each.
func client(kept int) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: kept == 0, MaxIdleConnsPerHost: kept}}
}

// fetch copies what is at a URL; any status but 200 is an error.
func fetch(ctx context.Context, client *http.Client, url string, to io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	_, err = io.Copy(to, resp.Body)
	return err
}

// udpReport is the outcome of udp.
type udpReport struct {
	Sent     int     `json:"sent"`
	Received int     `json:"received"`
	MaxMs    float64 `json:"maxMs"`
	Error    string  `json:"error,omitempty"`
}

// udpEcho sends datagrams one by one and wants each back unchanged.
func udpEcho(ctx context.Context, args []string) error {
	fs := newFlags("udp")
	size := fs.Int("size", 64, "payload bytes")
	count := fs.Int("count", 1, "datagrams")
	timeout := fs.Duration("timeout", 2*time.Second, "for each answer")
	host, err := parse(fs, args, 1)
	if err != nil {
		return err
	}
	c, err := net.Dial("udp", net.JoinHostPort(host[0], strconv.Itoa(servePort)))
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if err := c.(*net.UDPConn).SetReadBuffer(4 << 20); err != nil {
		return err
	}
	var r udpReport
	var failure error
	out, in := make([]byte, *size), make([]byte, 65536)
	for i := range *count {
		_, _ = rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)}).Read(out) // never fails
		start := time.Now()
		if _, err := c.Write(out); err != nil {
			failure = fmt.Errorf("datagram %d: %w", i, err)
			continue
		}
		r.Sent++
		if err := c.SetReadDeadline(start.Add(*timeout)); err != nil {
			return err
		}
		n, err := c.Read(in)
		switch {
		case err != nil:
			failure = fmt.Errorf("datagram %d: %w", i, err)
		case !bytes.Equal(in[:n], out):
			failure = fmt.Errorf("datagram %d came back changed: %d bytes, want %d", i, n, len(out))
		default:
			r.Received++
			r.MaxMs = max(r.MaxMs, float64(time.Since(start))/float64(time.Millisecond))
		}
	}
	if failure != nil {
		r.Error = failure.Error()
	}
	return errors.Join(failure, report(r))
}

// mapped queries each host which address and port it sees, from one local port: the
// NAT's mapping. It prints an object by host.
func mapped(ctx context.Context, args []string) error {
	fs := newFlags("mapped")
	from := fs.Int("from", 0, "local UDP port")
	if err := fs.Parse(args); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	c, err := net.ListenUDP("udp4", &net.UDPAddr{Port: *from})
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	seen := map[string]string{}
	buf := make([]byte, 100)
	for _, host := range fs.Args() {
		to := &net.UDPAddr{IP: net.ParseIP(host), Port: servePort}
		if _, err := c.WriteToUDP([]byte(whoami), to); err != nil {
			return err
		}
		if err := c.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
			return err
		}
		n, err := c.Read(buf)
		if err != nil {
			return fmt.Errorf("%s: %w", host, err)
		}
		seen[host] = string(buf[:n])
	}
	return report(seen)
}
