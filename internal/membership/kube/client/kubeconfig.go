package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// Kubeconfig is a file in the format that kubectl reads, as far as requests are concerned.
type Kubeconfig struct {
	CurrentContext string         `json:"current-context"`
	Contexts       []kubeContext  `json:"contexts"`
	Clusters       []namedCluster `json:"clusters"`
	Users          []namedUser    `json:"users"`
}

type kubeContext struct {
	Name    string `json:"name"`
	Context struct {
		Cluster string `json:"cluster"`
		User    string `json:"user"`
	} `json:"context"`
}

type namedCluster struct {
	Name    string  `json:"name"`
	Cluster Cluster `json:"cluster"`
}

type namedUser struct {
	Name string `json:"name"`
	User User   `json:"user"`
}

// Cluster is where an API is, and what its server's certificate is checked with. Data goes before a file of the same.
type Cluster struct {
	Server             string      `json:"server"`
	ServerName         string      `json:"tls-server-name,omitempty"`
	Insecure           bool        `json:"insecure-skip-tls-verify,omitempty"`
	CA                 string      `json:"certificate-authority,omitempty"`
	CAData             []byte      `json:"certificate-authority-data,omitempty"`
	ProxyURL           string      `json:"proxy-url,omitempty"`
	DisableCompression bool        `json:"disable-compression,omitempty"`
	Extensions         []extension `json:"extensions,omitempty"`
}

type extension struct {
	Name      string          `json:"name"`
	Extension json.RawMessage `json:"extension"`
}

// User is who asks. Data goes before a file of the same; a token's file goes before the token.
type User struct {
	Certificate     string          `json:"client-certificate"`
	CertificateData []byte          `json:"client-certificate-data"`
	Key             string          `json:"client-key"`
	KeyData         []byte          `json:"client-key-data"`
	Token           string          `json:"token"`
	TokenFile       string          `json:"tokenFile"`
	Username        string          `json:"username"`
	Password        string          `json:"password"`
	Provider        json.RawMessage `json:"auth-provider"` // of no use: client-go dropped them in 1.26
	Exec            *Exec           `json:"exec"`
	impersonation
}

// impersonation is as whom a user asks.
type impersonation struct {
	As      string              `json:"as"`
	AsUID   string              `json:"as-uid"`
	AsGroup []string            `json:"as-groups"`
	AsExtra map[string][]string `json:"as-user-extra"`
}

// Program says that u's credentials come from a program on the host.
func (u *User) Program() bool {
	return u.Exec != nil || len(u.Provider) > 0 && string(u.Provider) != "null"
}

// LoadKubeconfig reads the file at path.
func LoadKubeconfig(path string) (*Kubeconfig, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var k Kubeconfig
	if err := yaml.Unmarshal(data, &k); err != nil {
		return nil, err
	}
	return &k, nil
}

// Current are cluster and user of the current context.
func (k *Kubeconfig) Current() (*Cluster, *User, error) {
	for _, x := range k.Contexts {
		if x.Name != k.CurrentContext {
			continue
		}
		var c *Cluster
		var u *User
		for i := range k.Clusters {
			if k.Clusters[i].Name == x.Context.Cluster {
				c = &k.Clusters[i].Cluster
			}
		}
		for i := range k.Users {
			if k.Users[i].Name == x.Context.User {
				u = &k.Users[i].User
			}
		}
		if c == nil || u == nil {
			return nil, nil, fmt.Errorf("context %q names a cluster or a user that does not exist", k.CurrentContext)
		}
		return c, u, nil
	}
	return nil, nil, fmt.Errorf("its current context %q does not exist", k.CurrentContext)
}

// byKubeconfig is the API that a kubeconfig names, or server with its credentials.
func byKubeconfig(path, server string) (*target, error) {
	k, err := LoadKubeconfig(path)
	if err != nil {
		return nil, err
	}
	c, u, err := k.Current()
	if err != nil {
		return nil, err
	}
	if server != "" { // has another certificate, too
		c.Server, c.ServerName = server, ""
	}
	switch {
	case c.Server == "":
		return nil, errors.New("its cluster has no server")
	case u.Exec == nil && u.Program():
		return nil, errors.New("its user has an auth-provider, which Kubernetes no longer has: use exec, a token or a certificate")
	case (u.Certificate != "" || len(u.CertificateData) > 0) != (u.Key != "" || len(u.KeyData) > 0):
		return nil, errors.New("its user has a client certificate without a key, or a key without a certificate")
	case (u.Token != "" || u.TokenFile != "") && (u.Username != "" || u.Password != ""):
		return nil, errors.New("its user has a token and a password: one of them is enough")
	case u.As == "" && (u.AsUID != "" || len(u.AsGroup) > 0 || len(u.AsExtra) > 0):
		return nil, errors.New("its user impersonates groups, but nobody: set as")
	}
	if u.Exec != nil {
		if err := u.Exec.check(); err != nil {
			return nil, err
		}
	}
	// Files are named relative to the kubeconfig's own directory.
	for _, f := range []*string{&c.CA, &u.Certificate, &u.Key, &u.TokenFile} {
		if *f != "" && !filepath.IsAbs(*f) {
			*f = filepath.Join(filepath.Dir(path), *f)
		}
	}
	if u.Exec != nil {
		u.Exec.beside(filepath.Dir(path))
	}
	return &target{cluster: *c, user: *u}, nil
}
