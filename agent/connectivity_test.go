package main

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/fleet"
)

// Who answers is counted, who does not is named; what a pod leaves for kubelet is never too long.
func TestConnectivity(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serveHello(ctx, l) }()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := "http://" + closed.Addr().String() + "/"
	closed.Close()
	out, err := tryAll(t.Context(), []string{"ip/a=http://" + l.Addr().String() + "/"}, time.Minute)
	if err != nil || out.Answered != 1 || len(out.Failed) != 0 {
		t.Errorf("%+v, %v", out, err)
	}
	out, err = tryAll(t.Context(), []string{"ip/b=" + gone}, time.Millisecond)
	if err != nil || out.Answered != 0 || len(out.Failed) != 1 || out.Failed[0].To != "ip/b" || out.Failed[0].Error == "" {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := tryAll(t.Context(), []string{"nonsense"}, time.Minute); err == nil {
		t.Error("a target without a URL is accepted")
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}

	file := filepath.Join(t.TempDir(), "log")
	many := fleet.Tried{Answered: 3}
	for range 100 {
		many.Failed = append(many.Failed, fleet.Failure{To: "dns/edge-2", Error: strings.Repeat("x", 200)})
	}
	var text strings.Builder
	if err := writeTried(&text, file, many); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	var got fleet.Tried
	if err != nil || len(b) > maxTried || json.Unmarshal(b, &got) != nil || len(got.Failed)+got.More != 100 || got.Answered != 3 {
		t.Errorf("%d bytes, %d failures, %d more, %v", len(b), len(got.Failed), got.More, err)
	}
}
