package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What a host's own file says goes before the shared file's common settings, and before those for its name.
func TestHostFile(t *testing.T) {
	state := t.TempDir()
	main := write(t, "stateDir: "+state+"\nmembership: {file: /m.yaml}\nproxy: http://10.0.0.1:1\nlan: {vxlanPort: 5215}\n"+
		"nodes: {edge-1: {proxy: 'http://10.0.0.2:2', punch: {birthday: true}}}\n")
	host := filepath.Join(state, HostFile)
	read := func() (Config, error) { return load(main, "edge-1", hostNamed("h")) }
	c, err := read()
	if err != nil || c.Proxy != "http://10.0.0.2:2" || c.Key("proxy") != "nodes.edge-1.proxy" {
		t.Fatalf("without it: %+v %v", c, err)
	}
	if err := os.WriteFile(host, []byte("proxy: http://10.0.0.3:3\nproxyCredentials: /x\nlan: {native: false}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err = read()
	if err != nil || c.Proxy != "http://10.0.0.3:3" || c.ProxyUser != "/x" || c.LAN != (LAN{VXLAN: true, VXLANPort: 5215}) || c.NodeName != "edge-1" ||
		c.Key("proxy") != host+": proxy" || c.Key("punch") != "nodes.edge-1.punch" {
		t.Errorf("with it: %+v %v, key %s", c, err, c.Key("proxy"))
	}
	for text, want := range map[string]string{
		"proxy: socks5://1.1.1.1:1": host + ": proxy: ",
		"nodeName: x":               host + ": nodeName: unknown field",
		"proxy: [":                  host + ": ",
		"proxyCredentials: x":       host + `: proxyCredentials: "x" is not an absolute path`,
	} {
		if err := os.WriteFile(host, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := read(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), main) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestProxyKeys(t *testing.T) {
	for text, want := range map[string]string{
		"proxy: http://10.0.0.1:3128":                     "",
		"proxy: none":                                     "",
		"proxy: none\nproxyCredentials: /x":               "proxyCredentials: set, but proxy is",
		"proxy: socks5://10.0.0.1:1080":                   "proxy: socks5://10.0.0.1:1080: neither http nor https",
		"proxy: http://10.0.0.1":                          "proxy: http://10.0.0.1: not http://HOST:PORT",
		"proxy: 'http://u:secret@10.0.0.1:3128'":          "name it with proxyCredentials",
		"proxyCredentials: here":                          `proxyCredentials: "here" is not an absolute path`,
		"nodes: {edge-9: {proxy: 'ftp://10.0.0.1:3128'}}": "nodes.edge-9.proxy: ftp://",
	} {
		_, err := load(write(t, text+"\nmembership: {file: /m.yaml}\n"), "edge-1", hostNamed("h"))
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)), err != nil && strings.Contains(err.Error(), "secret"):
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
