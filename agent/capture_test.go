package main

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"edgemesh/agent/capture"
)

// A capture ends at its bytes, on a screen, in a pipe and in a file, and has bounds if nobody sets any.
func TestCaptureIsBounded(t *testing.T) {
	flag := newCapture().Flags().Lookup
	if d, n := flag("duration").DefValue, flag("max-bytes").DefValue; d != "1m0s" || n != "104857600" {
		t.Errorf("without options it ends after %s and %s bytes", d, n)
	}
	const most, each = 10_000, 1000
	packet := capture.Packet{At: time.Unix(1, 0), Link: "edgemesh-tun", Size: each, Data: make([]byte, each)}
	for _, file := range []string{"", "-", filepath.Join(t.TempDir(), "x.pcapng")} {
		var w bytes.Buffer
		k := captureCommand{file: file, bytes: most}
		take, end, err := k.output(&w)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for ; err == nil && n < most; n++ {
			err = take(packet, "peer edge-2, path direct")
		}
		if !errors.Is(err, errEnough) || w.Len() > most+2*each {
			t.Errorf("%q: %d packets, %d bytes, %v", file, n, w.Len(), err)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	}
}
