package paths

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	ma "github.com/multiformats/go-multiaddr"
)

func TestProbeFrame(t *testing.T) {
	for _, f := range []probeFrame{
		{typ: probeRequest, seq: 1, token: 2},
		{typ: probeAnswer, owned: true, seq: 1<<32 - 1, token: 1<<64 - 1, observed: ma.StringCast("/ip4/5.5.1.1/tcp/4001")},
		{typ: probeDrop, token: 7, observed: ma.StringCast("/ip6/2001:db8::1/udp/4001/quic-v1")},
	} {
		b := f.append([]byte("x"))[1:]
		got, err := readProbe(bytes.NewReader(b))
		if err != nil {
			t.Errorf("%+v: %v", f, err)
			continue
		}
		if fmt.Sprint(got) != fmt.Sprint(f) {
			t.Errorf("read %+v, want %+v", got, f)
		}
		for i := range b {
			if _, err := readProbe(bytes.NewReader(b[:i])); err == nil {
				t.Errorf("%+v: the first %d of %d bytes are a frame", f, i, len(b))
			}
		}
	}
	good := probeFrame{typ: probeRequest}.append(nil)
	for what, change := range map[string]func([]byte){
		"type 0":          func(b []byte) { b[2] = 0 },
		"type 5":          func(b []byte) { b[2] = 5 },
		"flag 2":          func(b []byte) { b[3] = 2 },
		"length too low":  func(b []byte) { b[1] = probeHeader - 1 },
		"length too high": func(b []byte) { b[0] = 2 },
	} {
		b := bytes.Clone(good)
		change(b)
		if _, err := readProbe(bytes.NewReader(append(b, make([]byte, 1000)...))); !errors.Is(err, errBadProbe) {
			t.Errorf("%s: error %v, want errBadProbe", what, err)
		}
	}
	bad := probeFrame{typ: probeRequest}.append(nil)
	bad[1] += 3
	if _, err := readProbe(bytes.NewReader(append(bad, 0xff, 0xff, 0xff))); !errors.Is(err, errBadProbe) {
		t.Errorf("bad address: error %v, want errBadProbe", err)
	}
}

func FuzzReadProbe(f *testing.F) {
	f.Add(probeFrame{typ: probeAnswer, owned: true, seq: 9, observed: ma.StringCast("/ip4/5.5.1.1/tcp/4001")}.append(nil))
	f.Add([]byte{0, 14})
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := readProbe(bytes.NewReader(b))
		if err != nil {
			return
		}
		again, err := readProbe(bytes.NewReader(frame.append(nil)))
		if err != nil || fmt.Sprint(again) != fmt.Sprint(frame) {
			t.Errorf("%+v came back as %+v, %v", frame, again, err)
		}
	})
}
