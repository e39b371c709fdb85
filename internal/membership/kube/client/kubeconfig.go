package client

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// LoadKubeconfig reads the file at path. Paths in it stay as they are written.
func LoadKubeconfig(path string) (*clientcmdapi.Config, error) { return clientcmd.LoadFromFile(path) }

// Current returns the cluster and the user of k's current context.
func Current(k *clientcmdapi.Config) (*clientcmdapi.Cluster, *clientcmdapi.AuthInfo, error) {
	x := k.Contexts[k.CurrentContext]
	if x == nil {
		return nil, nil, fmt.Errorf("its current-context %q does not exist", k.CurrentContext)
	}
	c, u := k.Clusters[x.Cluster], k.AuthInfos[x.AuthInfo]
	if c == nil || u == nil {
		return nil, nil, fmt.Errorf("context %q names a cluster or a user that does not exist", k.CurrentContext)
	}
	return c, u, nil
}

// SecretFiles are the files that the secret of a kubeconfig's user is in: itself, or its tokenFile and client-key.
func SecretFiles(path string) (files []string, err error) {
	u, err := user(path)
	if err != nil {
		return nil, err
	}
	if u.Token != "" || u.Password != "" || len(u.ClientKeyData) > 0 {
		files = append(files, path)
	}
	for _, f := range []string{u.TokenFile, u.ClientKey} {
		if f != "" {
			files = append(files, f)
		}
	}
	return files, nil
}

// user is that of a kubeconfig's current context.
func user(path string) (*clientcmdapi.AuthInfo, error) {
	k, err := LoadKubeconfig(path)
	if err == nil {
		err = clientcmd.ResolveLocalPaths(k)
	}
	if err != nil {
		return nil, err
	}
	_, u, err := Current(k)
	return u, err
}

// Ends is when a kubeconfig's certificate or token ends; zero: it does not say.
func Ends(path string) (end time.Time) {
	u, err := user(path)
	if err != nil {
		return end // Start says what is wrong with it
	}
	read := func(data, file string) []byte {
		if data == "" && file != "" {
			text, _ := os.ReadFile(file)
			return text
		}
		return []byte(data)
	}
	if block, _ := pem.Decode(read(string(u.ClientCertificateData), u.ClientCertificate)); block != nil {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			return cert.NotAfter
		}
	}
	var claims struct {
		Exp int64 `json:"exp"` // RFC 7519, section 4.1.4
	}
	if parts := strings.Split(string(read(u.Token, u.TokenFile)), "."); len(parts) == 3 {
		text, _ := base64.RawURLEncoding.DecodeString(parts[1])
		if json.Unmarshal(text, &claims) == nil && claims.Exp > 0 {
			return time.Unix(claims.Exp, 0)
		}
	}
	return end
}

// byKubeconfig returns the API that a kubeconfig names, or server with its credentials. It refuses beforehand what client-go
// refuses with each request, or ignores.
func byKubeconfig(path, server string) (*rest.Config, error) {
	k, err := LoadKubeconfig(path)
	if err != nil {
		return nil, err
	}
	c, u, err := Current(k)
	if err != nil {
		return nil, err
	}
	hasCert := u.ClientCertificate != "" || len(u.ClientCertificateData) > 0
	switch {
	case c.Server == "" && server == "":
		return nil, errors.New("its cluster has no server")
	case u.AuthProvider != nil:
		return nil, errors.New("its user has an auth-provider, which Kubernetes no longer has: use exec, a token or a certificate")
	case !hasCert && (u.ClientKey != "" || len(u.ClientKeyData) > 0):
		return nil, errors.New("its user has a client-key without a client-certificate")
	case u.Exec != nil && u.Exec.InteractiveMode == clientcmdapi.AlwaysExecInteractiveMode:
		return nil, errors.New("its user's exec needs a terminal (interactiveMode: Always), and there is none: name another kubeconfig")
	}
	if server != "" { // has another certificate, too
		c.Server, c.TLSServerName = server, ""
	}
	if !strings.Contains(c.Server, "://") && (c.InsecureSkipTLSVerify || c.CertificateAuthority != "" || len(c.CertificateAuthorityData) > 0 || hasCert) {
		c.Server = "https://" + c.Server // client-go would drop the credentials and send requests in the clear
	}
	// Files are named relative to the kubeconfig's own directory.
	if err := clientcmd.ResolveLocalPaths(k); err != nil {
		return nil, err
	}
	return clientcmd.NewNonInteractiveClientConfig(*k, "", nil, nil).ClientConfig()
}
