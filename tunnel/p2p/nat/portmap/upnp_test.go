package portmap

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// loopRouter is a gateway whose router is another loopback address.
var loopRouter = Gateway{Router: netip.MustParseAddr("127.0.0.2"), Local: netip.MustParseAddr("127.0.0.1")}

// serveAt serves h at an address and returns its URL.
func serveAt(t *testing.T, ip string, h http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp", ip+":0")
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	return s.URL
}

// described is a device whose service is controlled at that URL.
func described(control string) string {
	return `<root xmlns="urn:schemas-upnp-org:device-1-0"><device><deviceType>urn:schemas-upnp-org:device:InternetGatewayDevice:1</deviceType>
<serviceList><service><serviceType>urn:schemas-upnp-org:service:WANIPConnection:1</serviceType><serviceId>urn:upnp-org:serviceId:WANIPConn1</serviceId>
<controlURL>` + control + `</controlURL></service></serviceList></device></root>`
}

const externalAddress = `<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body><u:GetExternalIPAddressResponse xmlns:u="urn:schemas-upnp-org:service:WANIPConnection:1">
<NewExternalIPAddress>5.5.5.5</NewExternalIPAddress></u:GetExternalIPAddressResponse></s:Body></s:Envelope>`

// A router, or who answers for it, has the agent reach nobody else: not by a control URL, a redirect or the proxy of the
// environment. What it says of itself is used.
func TestUPnPReachesTheRouterOnly(t *testing.T) {
	var victim atomic.Int64
	elsewhere := serveAt(t, "127.0.0.3", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		victim.Add(1)
		fmt.Fprint(w, described("/ctl"))
	}))
	t.Setenv("HTTP_PROXY", elsewhere)
	t.Setenv("http_proxy", elsewhere)
	for name, x := range map[string]struct {
		control  string
		redirect string // of a path, to
		good     bool
	}{
		"its own":                 {control: "/ctl", good: true},
		"another's control":       {control: elsewhere + "/ctl"},
		"a name":                  {control: "http://localhost/ctl"},
		"a redirected control":    {control: "/ctl", redirect: "/ctl"},
		"a redirected descriptor": {control: "/ctl", redirect: "/desc"},
	} {
		t.Run(name, func(t *testing.T) {
			victim.Store(0)
			at := serveAt(t, "127.0.0.2", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == x.redirect:
					http.Redirect(w, r, elsewhere+r.URL.Path, http.StatusTemporaryRedirect)
				case r.URL.Path == "/ctl":
					fmt.Fprint(w, externalAddress)
				default:
					fmt.Fprint(w, described(x.control))
				}
			}))
			loc, err := url.Parse(at + "/desc")
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if s := newUPnP(loopRouter).service(t.Context(), loc); s != nil {
				got, _ = s.GetExternalIPAddressCtx(t.Context())
			}
			if (got == "5.5.5.5") != x.good || victim.Load() != 0 {
				t.Errorf("external address %q, %d requests elsewhere", got, victim.Load())
			}
		})
	}
}

// A router that takes longer to act than to describe itself is waited for.
func TestUPnPWaitsForSlowRouters(t *testing.T) {
	at := serveAt(t, "127.0.0.2", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ctl" {
			time.Sleep(httpTime + time.Second/2) // sleep: a slow router
			fmt.Fprint(w, externalAddress)
			return
		}
		fmt.Fprint(w, described("/ctl"))
	}))
	loc, err := url.Parse(at + "/desc")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := newUPnP(loopRouter).service(t.Context(), loc).GetExternalIPAddressCtx(t.Context()); got != "5.5.5.5" {
		t.Errorf("%q, %v", got, err)
	}
}

// A description and an answer without end are cut off.
func TestUPnPReadsLittle(t *testing.T) {
	var sent atomic.Int64
	endless := func(w io.Writer, head string) {
		fmt.Fprint(w, head)
		pad := []byte("<!--" + strings.Repeat("x", 32<<10) + "-->")
		for range 1500 { // 47 MB
			n, err := w.Write(pad)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}
	long := false
	at := serveAt(t, "127.0.0.2", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/ctl":
			endless(w, "<s:Envelope>")
		case long:
			endless(w, "<root>")
		default:
			fmt.Fprint(w, described("/ctl"))
		}
	}))
	loc, err := url.Parse(at + "/desc")
	if err != nil {
		t.Fatal(err)
	}
	u := newUPnP(loopRouter)
	s := u.service(t.Context(), loc)
	if s == nil {
		t.Fatal("the control: no service")
	}
	if _, err := s.GetExternalIPAddressCtx(t.Context()); err == nil {
		t.Error("an answer without end is good")
	}
	long = true
	if u.service(t.Context(), loc) != nil {
		t.Error("a description without end is good")
	}
	if n := sent.Load(); n > 16<<20 { // what sockets hold
		t.Errorf("%d bytes were read", n)
	}
}

// Answers of others and answers without number take no memory, and lead nowhere.
func TestUPnPSearchIsBounded(t *testing.T) {
	router, err := net.ListenPacket("udp4", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	other, err := net.ListenPacket("udp4", "127.0.0.3:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	answer := func(loc string) []byte {
		return []byte("HTTP/1.1 200 OK\r\nST: kind\r\nUSN: x\r\nLOCATION: " + loc + "\r\n\r\n")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, from, err := router.ReadFrom(make([]byte, 2048))
		if err != nil {
			return
		}
		_, _ = other.WriteTo(answer("http://127.0.0.2:1/forged"), from)
		for _, loc := range []string{"http://192.168.1.66:5000/a.xml", "http://169.254.169.254/latest", "file:///etc/passwd", "http://router/x", ""} {
			_, _ = router.WriteTo(answer(loc), from)
		}
		for i := range 300 {
			_, _ = router.WriteTo(answer(fmt.Sprint("http://127.0.0.2:5000/", i)), from)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	got, err := newUPnP(loopRouter).search(ctx, router.LocalAddr().(*net.UDPAddr).AddrPort(), "kind")
	<-done
	if err != nil || len(got) == 0 || len(got) > maxAnswers || got[0].Path != "/0" {
		t.Errorf("%d locations, %v, %v", len(got), got[:min(len(got), 3)], err)
	}
}
