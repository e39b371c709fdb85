package client

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
)

const (
	// serviceAccount is where a pod finds its token and the API's CA.
	serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"
	// apiServer is where the optional ConfigMap edgemesh-apiserver is mounted, with the
	// files host and port. An environment variable would not do: kubelet would have to read
	// it from the API at every restart, and start no container while the API is unreachable.
	apiServer = "/etc/edgemesh-apiserver"
)

const (
	// MetaServer is KubeEdge's local API on an edge, without requireAuthorization. With it, that is https with a token,
	// and pods are given the address of its own device.
	MetaServer     = "http://127.0.0.1:" + metaServerPort
	metaServerPort = "10550"
	metaServerIP   = "169.254.30.10"
	// YurtHub is OpenYurt's local API on a node. Who sends it no token speaks as the node; tokens that YurtHub made up
	// while it was offline would be refused for minutes after its return.
	YurtHub     = "http://127.0.0.1:" + yurtHubPort
	yurtHubPort = "10261"
	// yurtHubLink is the device that has YurtHub's address.
	yurtHubLink = "yurthub-dummy0"
)

// environment is what access depends on besides the configuration.
type environment struct {
	getenv func(string) string
	dir    string      // of the service account
	edge   func() bool // an edge of KubeEdge
	hub    func() bool // a node of OpenYurt, with YurtHub on it
}

// ErrConfig is what the operator has to fix: a kubeconfig that is missing or broken, a server
// that is not a URL, no way to find the API.
var ErrConfig = errors.New("no usable access to the Kubernetes API")

func processEnvironment() environment {
	return environment{mounted(apiServer, os.Getenv), serviceAccount, onEdge, besideHub}
}

// besideHub reports whether YurtHub is on this host. Pods of the pod network, which do not see its device, reach it with
// their tokens, at the address that they find in place of the API server's.
func besideHub() bool {
	_, err := net.InterfaceByName(yurtHubLink)
	return err == nil
}

// onEdge reports whether edgecore runs on this host: its pods have the variables of the API server, empty ones, unless
// MetaServer requires tokens, and its configuration is where a unit sees it.
func onEdge() bool {
	host, set := os.LookupEnv("KUBERNETES_SERVICE_HOST")
	return set && host == "" || exists("/etc/kubeedge/config/edgecore.yaml")
}

// mounted is getenv with the API server's address from the files in dir, if they exist.
func mounted(dir string, getenv func(string) string) func(string) string {
	files := map[string]string{"KUBERNETES_SERVICE_HOST": "host", "KUBERNETES_SERVICE_PORT": "port"}
	return func(key string) string {
		if name, ok := files[key]; ok {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if value := strings.TrimSpace(string(text)); err == nil && value != "" {
				return value
			}
		}
		return getenv(key)
	}
}

// access finds the API: by kubeconfig, by server, or as a pod does. A token is used if there is one, but not required:
// edge-local caches need none.
func (e environment) access(kubeconfig, server string) (*rest.Config, error) {
	if server != "" && !strings.Contains(server, "://") {
		return nil, fmt.Errorf("server %q is not http(s)://HOST:PORT", server)
	}
	if kubeconfig != "" {
		return byKubeconfig(kubeconfig, server)
	}
	if server == "" {
		host, set := e.getenv("KUBERNETES_SERVICE_HOST"), e.getenv("KUBERNETES_SERVICE_PORT")
		switch {
		case e.hub():
			server = YurtHub
		case host != "" && set != "":
			server = "https://" + net.JoinHostPort(host, set)
		case e.edge():
			server = MetaServer
		default:
			return nil, errors.New("not in a pod (KUBERNETES_SERVICE_HOST is empty), and not on an edge of KubeEdge or OpenYurt; " +
				"set membership.kubernetes.kubeconfig, or .server")
		}
	}
	c := &rest.Config{Host: server}
	if strings.HasPrefix(server, "https://") { // never a token in the clear
		if f := filepath.Join(e.dir, "token"); exists(f) {
			c.BearerTokenFile = f
		}
		if f := filepath.Join(e.dir, "ca.crt"); exists(f) {
			c.CAFile = f
		}
	}
	return c, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
