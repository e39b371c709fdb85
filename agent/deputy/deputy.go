// Package deputy makes writes to the API through a controller where this node's own access does not allow them. The node proves
// who it is by the certificate that its platform gave it.
package deputy

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"github.com/libp2p/go-libp2p/core/crypto"

	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/proxy"
	"edgemesh/internal/resolve"
	"edgemesh/tunnel/p2p/admission/enroll"
	"edgemesh/tunnel/p2p/admission/join"
	"edgemesh/tunnel/p2p/who/admit"
)

// files hold a certificate and its key.
type files struct{ cert, key string }

// usual are where platforms keep a node's certificate: edgecore and kubelet.
func usual() []files {
	return []files{
		{"/etc/kubeedge/certs/server.crt", "/etc/kubeedge/certs/server.key"},
		{"/var/lib/kubelet/pki/kubelet-client-current.pem", "/var/lib/kubelet/pki/kubelet-client-current.pem"},
	}
}

// Deputy sends requests to controllers.
type Deputy struct {
	key     crypto.PrivKey
	files   []files
	secrets string // file with the join secrets that relays require; "": none does
	proxy   *proxy.Egress
	names   *resolve.Names
	log     *slog.Logger
}

var _ kube.Deputy = (*Deputy)(nil)

// Config says which node a deputy is of.
type Config struct {
	Key crypto.PrivKey // of the node
	// Certificate and CertificateKey are the files of its platform's certificate, "" for the usual ones.
	Certificate, CertificateKey string
	JoinSecretFile              string        // "": no relay requires a secret
	Proxy                       *proxy.Egress // to the relays; nil: none
	Names                       *resolve.Names
	Log                         *slog.Logger
}

// New returns a deputy.
func New(c Config) *Deputy {
	d := &Deputy{key: c.Key, files: usual(), secrets: c.JoinSecretFile, proxy: c.Proxy, names: c.Names, log: cmp.Or(c.Log, slog.New(slog.DiscardHandler))}
	if c.Certificate != "" {
		d.files = []files{{c.Certificate, cmp.Or(c.CertificateKey, c.Certificate)}}
	}
	return d
}

// Write implements kube.Deputy.
func (d *Deputy) Write(ctx context.Context, relays []mesh.Relay, controllers []mesh.PeerID, method, path string, body []byte) (int, []byte, error) {
	cert, err := d.certificate()
	if err != nil {
		return 0, nil, err
	}
	way, err := d.way(relays, controllers)
	if err != nil {
		return 0, nil, err
	}
	a, err := enroll.Do(ctx, d.key, cert, way, enroll.Request{Method: method, Path: path, Body: json.RawMessage(body)})
	return a.Code, a.Body, err
}

// way is how controllers are reached now.
func (d *Deputy) way(relays []mesh.Relay, controllers []mesh.PeerID) (enroll.Via, error) {
	m, err := admit.Membership(nil, relays, nil, admit.Decode)
	if err != nil {
		return enroll.Via{}, err
	}
	way := enroll.Via{Relays: m.Relays, Proxy: d.proxy, Names: d.names}
	if d.secrets != "" { // read each time, since they are rotated
		secrets, err := join.Load(d.secrets)
		if err != nil {
			return way, err
		}
		way.Greet = join.NewProver(secrets, d.log).Admit
	}
	var wrong []mesh.PeerID
	if way.Controllers, wrong = admit.PeerIDs(controllers); len(wrong) > 0 {
		return way, fmt.Errorf("controllers of the PodNetwork: %q: not peer IDs", wrong)
	}
	return way, nil
}

// certificate reads the first pair of files that exists. It is read each time, since platforms renew it.
func (d *Deputy) certificate() (*tls.Certificate, error) {
	for _, f := range d.files {
		if _, err := os.Stat(f.cert); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		cert, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("the node's certificate %s, key %s: %w", f.cert, f.key, err)
		}
		return &cert, nil
	}
	return nil, fmt.Errorf("no certificate of this node at %s; set membership.kubernetes.nodeCertificate and nodeKey", d.files[0].cert)
}
