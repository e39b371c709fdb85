package client

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"edgemesh/internal/membership/kube/api"
)

// Explain adds to the error of a request about k what it means and what to do. It may query
// the API's version.
func (c *Client) Explain(ctx context.Context, k api.Kind, err error) error {
	var refused *apierrors.StatusError
	why := ""
	switch {
	case err == nil, ctx.Err() != nil:
	case errors.As(err, &refused):
		why = c.refusal(ctx, k, refused.ErrStatus)
	case errors.As(err, new(*json.SyntaxError)):
		why = c.foreign()
	default:
		why = c.failure(err)
	}
	if why == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, why)
}

// refusal explains an HTTP status, "" for one that passes by itself.
func (c *Client) refusal(ctx context.Context, k api.Kind, st metav1.Status) string {
	switch st.Code {
	case http.StatusUnauthorized:
		return "the agent's token or certificate is not accepted: it has expired, or is another cluster's. An edge cache also answers so for some minutes " +
			"after it was restarted. If this lasts, renew the kubeconfig's credentials (kubelet's are renewed by kubelet), or delete the agent's pod for a new token"
	case http.StatusForbidden:
		return "the agent lacks this right: apply the manifests or the chart again (ClusterRole edgemesh:agent and its bindings); a kubeconfig must be that of " +
			"user system:node:NAME, with this node's name"
	case http.StatusNotFound:
		return c.missing(ctx, k)
	case http.StatusBadRequest, http.StatusInternalServerError:
		if c.Plain() && wantsTLS(st) {
			return fmt.Sprintf("what answers at %s wants https. KubeEdge's MetaServer does with requireAuthorization, and a token, which only the pods of "+
				"a DaemonSet have: on edges, too, use the one for the cloud (kubeedge.enabled: false, apiServer.host empty). For a unit or static pod set "+
				"membership.kubernetes.kubeconfig for the API server itself (user system:node:NAME), or membership.file; or disable requireAuthorization", c.URL())
		}
		if c.Cache() {
			return "the node's API cache has no answer of the cloud's: it has no uplink, or its cloud side refuses. For YurtHub check that ConfigMap " +
				"kube-system/yurt-hub-cfg lists edgemesh-agent in cache_agents"
		}
	}
	return ""
}

// wantsTLS says that a server refused a request because it came without TLS, in the words of Go's net/http.
func wantsTLS(st metav1.Status) bool {
	return st.Details != nil && slices.ContainsFunc(st.Details.Causes, func(c metav1.StatusCause) bool {
		return strings.Contains(c.Message, "HTTP request to an HTTPS server")
	})
}

// missing explains a 404 for a whole kind.
func (c *Client) missing(ctx context.Context, k api.Kind) string {
	v, err := c.Version(ctx)
	switch {
	case err != nil || k.Group != api.Group:
		return c.foreign()
	case TooOld(v) != nil:
		return TooOld(v).Error()
	}
	return fmt.Sprintf("the API server (%s) does not have our kind %s: apply the CustomResourceDefinitions (manifests/edgemesh.yaml, or crds/ of the chart)", v, k.Kind)
}

// foreign says that what answers is something else.
func (c *Client) foreign() string {
	if c.Cache() {
		return fmt.Sprintf("what answers at %s is not an API cache of Kubernetes: check membership.kubernetes.server, and which program has that port", c.URL())
	}
	return fmt.Sprintf("what answers at %s is not a Kubernetes API: check the address, and whether a proxy or a login page of the network is in between", c.URL())
}

// failure explains why there was no answer.
func (c *Client) failure(err error) string {
	var network net.Error
	switch {
	case errors.Is(err, errOwner): // says it itself
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "the API's certificate is not signed by the CA that the agent was given: correct certificate-authority in the kubeconfig (in a pod the service " +
			"account's ca.crt), or the address if another server answers there"
	case errors.As(err, new(x509.HostnameError)):
		return "the API's certificate does not have this address: use one that it names, or add it there (kubeadm: --apiserver-cert-extra-sans)"
	case errors.As(err, new(x509.CertificateInvalidError)):
		return "the API's certificate is not valid now: check this node's clock, then renew the certificate"
	case errors.Is(err, fs.ErrNotExist):
		return "create the file, or correct its path in the kubeconfig"
	case errors.Is(err, syscall.ECONNREFUSED) && c.Cache():
		return fmt.Sprintf("no API cache runs at %s: start edgecore with modules.metaManager.metaServer.enable: true, or yurthub, or correct "+
			"membership.kubernetes.server", c.URL())
	case errors.As(err, &network):
		return fmt.Sprintf("the API cannot be reached at %s: check this node's uplink, and the address (membership.kubernetes, or ConfigMap edgemesh-apiserver)", c.URL())
	}
	return ""
}

// versionTimeout is how long an explanation may wait for the API's version.
const versionTimeout = 3 * time.Second

// Version is the API server's, such as v1.35.4.
func (c *Client) Version(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	var v struct {
		GitVersion string `json:"gitVersion"`
	}
	if err := c.Get(ctx, "/version", &v); err != nil {
		return "", err
	}
	if v.GitVersion == "" {
		return "", fmt.Errorf("GET /version: %w", errNoVersion)
	}
	return v.GitVersion, nil
}

var errNoVersion = errors.New("the answer names no version")
