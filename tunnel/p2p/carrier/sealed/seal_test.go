package sealed

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"testing"
)

var suites = []uint16{tls.TLS_AES_128_GCM_SHA256, tls.TLS_AES_256_GCM_SHA384, tls.TLS_CHACHA20_POLY1305_SHA256}

func ends(t testing.TB, suite uint16) (*Sealer, *Opener) {
	t.Helper()
	secret := bytes.Repeat([]byte{7}, SecretLen)
	s, err := NewSealer(suite, secret, 0x2badcafe)
	if err != nil {
		t.Fatal(err)
	}
	o, err := NewOpener(suite, secret)
	if err != nil {
		t.Fatal(err)
	}
	return s, o
}

func seal(t testing.TB, s *Sealer, payload string) []byte {
	t.Helper()
	b, err := s.Seal(nil, []byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	if len(b) != len(payload)+Overhead || !Is(b) || Index(b) != 0x2badcafe {
		t.Fatalf("packet %x: length, mark or index is wrong", b)
	}
	return b
}

func TestSealOpen(t *testing.T) {
	for _, suite := range suites {
		t.Run(tls.CipherSuiteName(suite), func(t *testing.T) {
			s, o := ends(t, suite)
			for _, want := range []string{"", "x", "hello", string(make([]byte, 9000))} {
				b := seal(t, s, want)
				if len(want) > 3 && bytes.Contains(b, []byte(want)) {
					t.Fatal("the payload is in the clear")
				}
				got, err := o.Open(b)
				if err != nil || string(got) != want {
					t.Fatalf("opened %d bytes, %v; want %d", len(got), err, len(want))
				}
			}
		})
	}
}

// The first packets of a known secret stay as they are: both ends of a cluster need
// not have the same version.
func TestKnownPacket(t *testing.T) {
	want := map[uint16]string{}
	for _, suite := range suites {
		s, _ := ends(t, suite)
		b := seal(t, s, "payload")
		want[suite] = string(b)
		if binary.BigEndian.Uint64(b[4:]) != 0 {
			t.Errorf("%s: the first counter is %x", tls.CipherSuiteName(suite), b[4:12])
		}
	}
	if want[suites[0]] == want[suites[1]] || want[suites[1]] == want[suites[2]] {
		t.Error("two ciphers make the same packet")
	}
}

func TestUnknownCipher(t *testing.T) {
	if _, err := NewSealer(tls.TLS_RSA_WITH_AES_128_CBC_SHA, make([]byte, SecretLen), 1); !errors.Is(err, ErrCipher) {
		t.Errorf("sealer: %v", err)
	}
	if _, err := NewOpener(0, make([]byte, SecretLen)); !errors.Is(err, ErrCipher) {
		t.Errorf("opener: %v", err)
	}
	if _, err := NewSealer(suites[0], make([]byte, SecretLen), MaxIndex+1); err == nil {
		t.Error("an index that looks like QUIC is accepted")
	}
}

func TestEveryBitIsAuthentic(t *testing.T) {
	s, o := ends(t, suites[0])
	b := seal(t, s, "hello")
	for bit := range len(b) * 8 {
		c := bytes.Clone(b)
		c[bit/8] ^= 1 << (bit % 8)
		if _, err := o.Open(c); !errors.Is(err, ErrForged) {
			t.Fatalf("bit %d changed: %v", bit, err)
		}
	}
	for n := range b {
		if _, err := o.Open(bytes.Clone(b[:n])); !errors.Is(err, ErrForged) {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
	if _, err := o.Open(b); err != nil {
		t.Fatalf("what was forged before spoils the true one: %v", err)
	}
}

func TestOrder(t *testing.T) {
	s, o := ends(t, suites[0])
	var all [][]byte
	for range 10 {
		all = append(all, seal(t, s, "x"))
	}
	for _, i := range []int{3, 1, 9, 0, 3} {
		if _, err := o.Open(bytes.Clone(all[i])); err != nil {
			t.Fatalf("packet %d out of order: %v", i, err)
		}
	}
}

func TestKeysChange(t *testing.T) {
	for _, suite := range suites {
		s, o := ends(t, suite)
		first := s.key
		s.counter = 1<<eraBits - 2
		var kept [][]byte
		for range 4 {
			kept = append(kept, seal(t, s, "x"))
		}
		if s.key == first || s.key.era != 1 || bytes.Equal(s.key.secret, first.secret) || s.key.iv == first.iv {
			t.Fatal("the key did not change")
		}
		for _, i := range []int{0, 2, 1, 3} { // the last of the old key comes late
			if _, err := o.Open(bytes.Clone(kept[i])); err != nil {
				t.Fatalf("packet %d across the change: %v", i, err)
			}
		}
		// A forged one of the next era changes nothing.
		forged := bytes.Clone(kept[3])
		binary.BigEndian.PutUint64(forged[4:], 2<<eraBits)
		if _, err := o.Open(forged); !errors.Is(err, ErrForged) || o.now.era != 1 {
			t.Fatalf("forged era: %v, era %d", err, o.now.era)
		}
		if _, err := o.Open(seal(t, s, "x")); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNoncesDiffer(t *testing.T) {
	s, _ := ends(t, suites[0])
	seen := map[[nonceLen]byte]bool{}
	for c := uint64(0); c < 1<<16; c++ {
		n := s.key.nonce(c)
		if seen[n] {
			t.Fatalf("nonce of %d was there before", c)
		}
		seen[n] = true
	}
}

func FuzzOpen(f *testing.F) {
	s, _ := ends(f, suites[0])
	f.Add(seal(f, s, "hello"))
	f.Add(make([]byte, Overhead))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, o := ends(t, suites[0])
		in := bytes.Clone(b)
		if _, err := o.Open(in); err == nil && !bytes.Equal(b, seal(t, s, "hello")) && binary.BigEndian.Uint64(b[4:]) != 0 {
			t.Fatalf("%x is taken for authentic", b)
		}
	})
}

func BenchmarkSeal(b *testing.B) {
	for _, suite := range suites {
		b.Run(tls.CipherSuiteName(suite), func(b *testing.B) {
			s, o := ends(b, suite)
			payload, buf := make([]byte, 1200), make([]byte, 0, 1300)
			b.ReportAllocs()
			b.SetBytes(int64(len(payload)))
			for b.Loop() {
				p, err := s.Seal(buf, payload)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := o.Open(p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
