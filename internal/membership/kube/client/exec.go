package client

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Exec is a program that prints the user's credentials, by the API group client.authentication.k8s.io.
type Exec struct {
	Command            string   `json:"command"`
	Args               []string `json:"args"`
	Env                []envVar `json:"env"`
	APIVersion         string   `json:"apiVersion"`
	InstallHint        string   `json:"installHint"`
	ProvideClusterInfo bool     `json:"provideClusterInfo"`
	InteractiveMode    string   `json:"interactiveMode"`
}

type envVar struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// execExtension is a cluster's extension with what its exec plugin wants to know.
const execExtension = "client.authentication.k8s.io/exec"

func (x *Exec) check() error {
	switch {
	case x.Command == "":
		return errors.New("its user's exec has no command")
	case x.APIVersion != "client.authentication.k8s.io/v1" && x.APIVersion != "client.authentication.k8s.io/v1beta1":
		return fmt.Errorf("its user's exec has the unknown apiVersion %q", x.APIVersion)
	case x.InteractiveMode == "Always":
		return errors.New("its user's exec needs a terminal (interactiveMode: Always), and there is none: name another kubeconfig")
	}
	return nil
}

// beside makes a command with a path relative to dir absolute; one without a path is looked for as a shell does.
func (x *Exec) beside(dir string) {
	if strings.Contains(x.Command, "/") && !filepath.IsAbs(x.Command) {
		x.Command = filepath.Join(dir, x.Command)
	}
}

// credential is what the program printed.
type credential struct {
	token   string
	cert    *tls.Certificate
	expires time.Time // zero: never
}

// program is an Exec in use. The program is run once for as long as its credentials last.
type program struct {
	exec    Exec
	cluster Cluster
	changed func() // the certificate is another

	mu  sync.Mutex
	now *credential
}

// credential runs the program if what it printed has expired, or was refused.
func (p *program) credential(refused *credential) (*credential, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.now
	if old != nil && old != refused && (old.expires.IsZero() || time.Now().Before(old.expires)) {
		return old, nil
	}
	c, err := p.run()
	if err != nil {
		return nil, fmt.Errorf("credentials from %s: %w", p.exec.Command, err)
	}
	p.now = c
	if old != nil && !sameCertificate(old.cert, c.cert) {
		p.changed()
	}
	return c, nil
}

func sameCertificate(a, b *tls.Certificate) bool {
	if a == nil || b == nil {
		return a == b
	}
	return slices.EqualFunc(a.Certificate, b.Certificate, bytes.Equal)
}

// info is what the program is told, in KUBERNETES_EXEC_INFO.
func (p *program) info() ([]byte, error) {
	spec := map[string]any{"interactive": false}
	if p.exec.ProvideClusterInfo {
		ca, err := dataOrFile(p.cluster.CAData, p.cluster.CA)
		if err != nil {
			return nil, err
		}
		c := struct {
			Cluster
			Extensions any             `json:"extensions,omitempty"` // not told
			Config     json.RawMessage `json:"config,omitempty"`
		}{Cluster: p.cluster}
		c.CA, c.CAData = "", ca
		for _, e := range p.cluster.Extensions {
			if e.Name == execExtension {
				c.Config = e.Extension
			}
		}
		spec["cluster"] = c
	}
	return json.Marshal(map[string]any{"kind": "ExecCredential", "apiVersion": p.exec.APIVersion, "spec": spec})
}

func (p *program) run() (*credential, error) {
	info, err := p.info()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(p.exec.Command, p.exec.Args...)
	cmd.Env = os.Environ()
	for _, e := range p.exec.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	cmd.Env = append(cmd.Env, "KUBERNETES_EXEC_INFO="+string(info))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) && p.exec.InstallHint != "" {
			return nil, fmt.Errorf("%w: %s", err, p.exec.InstallHint)
		}
		return nil, err
	}
	return parseCredential(out.Bytes(), p.exec.APIVersion)
}

func parseCredential(data []byte, apiVersion string) (*credential, error) {
	var in struct {
		Kind       string `json:"kind"`
		APIVersion string `json:"apiVersion"`
		Status     *struct {
			Expires time.Time `json:"expirationTimestamp"`
			Token   string    `json:"token"`
			Cert    string    `json:"clientCertificateData"`
			Key     string    `json:"clientKeyData"`
		} `json:"status"`
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, fmt.Errorf("what it printed is no ExecCredential: %w", err)
	}
	st := in.Status
	switch {
	case in.Kind != "ExecCredential" || in.APIVersion != apiVersion:
		return nil, fmt.Errorf("it printed a %s of %s, not an ExecCredential of %s", in.Kind, in.APIVersion, apiVersion)
	case st == nil || st.Token == "" && st.Cert == "" && st.Key == "":
		return nil, errors.New("it printed neither a token nor a certificate")
	}
	c := &credential{token: st.Token, expires: st.Expires}
	if st.Cert != "" || st.Key != "" {
		cert, err := tls.X509KeyPair([]byte(st.Cert), []byte(st.Key))
		if err != nil {
			return nil, fmt.Errorf("the certificate it printed: %w", err)
		}
		c.cert = &cert
	}
	return c, nil
}

// certificate is what a server that asks for one is shown.
func (p *program) certificate() (*tls.Certificate, error) {
	c, err := p.credential(nil)
	if err != nil || c.cert == nil {
		return &tls.Certificate{}, err
	}
	return c.cert, nil
}

// asked adds a program's token to requests, and runs it again once a server refuses it.
type asked struct {
	*program
	http.RoundTripper
}

func (a asked) RoundTrip(req *http.Request) (*http.Response, error) {
	c, err := a.credential(nil)
	if err != nil {
		return nil, err
	}
	if c.token != "" {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := a.RoundTripper.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		_, _ = a.credential(c) // for the next request, which says why if it fails
	}
	return resp, err
}

// WrappedRoundTripper lets client-go find the transport below, to close it.
func (a asked) WrappedRoundTripper() http.RoundTripper { return a.RoundTripper }
