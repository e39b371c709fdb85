package controller

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/wake"
)

const (
	// caSecret is the Secret with the CA of the controllers' webhook, which the first one makes.
	caSecret = "edgemesh-webhook"
	caCert   = "ca.crt" // PEM, the one that signs first
	caKey    = "ca.key"
	// webhooks is the configuration in which they name it.
	webhooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/edgemesh"
	// caLife and certLife are how long a CA and a controller's certificate are valid. Both are renewed in the last third.
	caLife   = 5 * 365 * 24 * time.Hour
	certLife = 90 * 24 * time.Hour
	// certEvery is how often it is looked whether that is due, and whether the configuration still names the CA.
	certEvery = time.Minute
	// certSoon is how often, while a new installation has no configuration yet.
	certSoon = time.Second
	// openFor is for how long nothing may guard the objects before that is said: of an installation helm makes the Deployment
	// before the ValidatingWebhookConfiguration.
	openFor = time.Minute
)

var (
	errNoCertificate = errors.New("no certificate yet")
	errMissing       = errors.New("no webhook is in it, so any node can write what is of the others; apply the chart as for this version of Kubernetes (helm upgrade; after a step back from 1.30 as docs/compatibility.md says)")
)

// authority has the API server trust this controller's webhook: a CA that all controllers share signs a certificate of each, which
// never leaves its memory. All but get belongs to the goroutine in run.
type authority struct {
	api       cluster
	namespace string
	metrics   *metrics
	log       *slog.Logger
	now       func() time.Time

	ca      []byte // PEM, of the one that signed
	current atomic.Pointer[tls.Certificate]
	missing atomic.Bool // the API server has no configuration of the webhook
}

// get is the certificate to serve.
func (a *authority) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := a.current.Load(); c != nil {
		return c, nil
	}
	return nil, errNoCertificate
}

// run keeps it until ctx ends.
func (a *authority) run(ctx context.Context) {
	began := a.now()
	for pause := certEvery; ; pause = certEvery {
		err := a.keep(ctx)
		a.missing.Store(errors.Is(err, errMissing))
		switch {
		case err == nil || ctx.Err() != nil:
		case a.missing.Load() && a.now().Sub(began) < openFor:
			pause = certSoon
			a.log.Debug("waiting for the ValidatingWebhookConfiguration edgemesh")
		default:
			pause = tryAgain
			a.metrics.failures.Inc()
			a.log.Warn("cannot keep the webhook's certificate: once it has expired, nodes cannot write their objects; members already known stay; retrying", "err", err)
		}
		if !wake.Sleep(ctx, pause) {
			return
		}
	}
}

// keep does what is due. The API server is to trust a CA before a certificate of it is served.
func (a *authority) keep(ctx context.Context) error {
	c, err := a.configured(ctx) // first: what is wrong with it may refuse the Secret
	if err != nil {
		return fmt.Errorf("ValidatingWebhookConfiguration edgemesh: %w", err)
	}
	s, err := a.shared(ctx)
	if err != nil {
		return fmt.Errorf("the CA, Secret %s/%s: %w", a.namespace, caSecret, err)
	}
	if err := a.announce(ctx, c, s.Data[caCert]); err != nil {
		return fmt.Errorf("ValidatingWebhookConfiguration edgemesh: %w", err)
	}
	if now := a.current.Load(); now != nil && !due(now.Leaf, a.now()) && bytes.Equal(a.ca, s.Data[caCert]) {
		return nil
	}
	ca, err := tls.X509KeyPair(s.Data[caCert], s.Data[caKey])
	if err != nil {
		return err
	}
	host := caSecret + "." + a.namespace + ".svc"
	leaf, err := issue(a.now(), certLife, &x509.Certificate{Subject: pkix.Name{CommonName: host}, DNSNames: []string{host}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, &ca)
	if err != nil {
		return err
	}
	a.ca = s.Data[caCert]
	a.current.Store(&leaf)
	a.log.Info("the webhook has a certificate", "until", leaf.Leaf.NotAfter)
	return nil
}

// shared reads the CA, and makes or renews it where that is due. A new one stands before the one that certificates in use are of.
func (a *authority) shared(ctx context.Context) (secret, error) {
	all := "/api/v1/namespaces/" + a.namespace + "/secrets"
	var s secret
	err := a.api.Get(ctx, all+"/"+caSecret, &s)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return s, err
	}
	ca, err := tls.X509KeyPair(s.Data[caCert], s.Data[caKey])
	if err == nil && !due(ca.Leaf, a.now()) {
		return s, nil
	}
	old := s.Data[caCert]
	if err != nil || a.now().After(ca.Leaf.NotAfter) {
		old = nil
	} else if first, _ := pem.Decode(old); first != nil {
		old = pem.EncodeToMemory(first)
	}
	fresh, err := issue(a.now(), caLife, &x509.Certificate{Subject: pkix.Name{CommonName: "EdgeMesh webhook CA"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}, nil)
	if err != nil {
		return s, err
	}
	key, err := x509.MarshalPKCS8PrivateKey(fresh.PrivateKey)
	if err != nil {
		return s, err
	}
	in := secret{Type: api.Type{APIVersion: "v1", Kind: "Secret"}, Meta: api.Meta{Name: caSecret, ResourceVersion: s.Meta.ResourceVersion}, Data: map[string][]byte{
		caCert: append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: fresh.Certificate[0]}), old...),
		caKey:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
	}}
	a.log.Info("made a CA for the webhook", "until", fresh.Leaf.NotAfter)
	if missing {
		return s, a.api.Create(ctx, all, in, &s)
	}
	return s, a.api.Patch(ctx, all+"/"+caSecret, client.Merge, nil, in, &s)
}

// configuration is the ValidatingWebhookConfiguration.
type configuration struct {
	Meta     api.Meta         `json:"metadata"`
	Webhooks []map[string]any `json:"webhooks"`
}

// configured reads it, and says what the API server has dropped of it.
func (a *authority) configured(ctx context.Context) (c configuration, err error) {
	if err := a.api.Get(ctx, webhooks, &c); err != nil && !apierrors.IsNotFound(err) {
		return c, err
	}
	if len(c.Webhooks) == 0 {
		return c, errMissing
	}
	if dropped := boundless(c.Webhooks); len(dropped) > 0 {
		a.log.Error("the API server has dropped the matchConditions of these webhooks: it is older than 1.28, or its feature gate AdmissionWebhookMatchConditions is off. Writes that "+
			"do not concern the mesh wait for this controller, those of Nodes among them, and some are refused: set the gate and apply the chart again, and until then "+
			"kubectl delete validatingwebhookconfiguration edgemesh", "webhooks", dropped)
	}
	return c, nil
}

// announce writes the CA into the configuration, where it is not there.
func (a *authority) announce(ctx context.Context, c configuration, ca []byte) error {
	text, changed := base64.StdEncoding.EncodeToString(ca), false
	for _, w := range c.Webhooks {
		if to, ok := w["clientConfig"].(map[string]any); ok && to["caBundle"] != text {
			to["caBundle"], changed = text, true
		}
	}
	if !changed {
		return nil
	}
	in := map[string]any{"metadata": map[string]any{"resourceVersion": c.Meta.ResourceVersion}, "webhooks": c.Webhooks}
	return a.api.Patch(ctx, webhooks, client.Merge, nil, in, &c)
}

// boundless are the names of those that the API server waits for, whatever is written: all that the chart makes so have conditions.
func boundless(webhooks []map[string]any) (names []any) {
	for _, w := range webhooks {
		if conditions, _ := w["matchConditions"].([]any); w["failurePolicy"] == "Fail" && len(conditions) == 0 {
			names = append(names, w["name"])
		}
	}
	return names
}

// due says that a certificate is in the last third of its time.
func due(c *x509.Certificate, now time.Time) bool {
	return now.After(c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 3))
}

// issue makes a certificate with a new key; a nil ca signs itself.
func issue(now time.Time, life time.Duration, c *x509.Certificate, ca *tls.Certificate) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	if c.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return tls.Certificate{}, err
	}
	c.NotBefore, c.NotAfter = now.Add(-time.Hour), now.Add(life) // clocks differ
	parent, signer := c, any(key)
	if ca != nil {
		parent, signer = ca.Leaf, ca.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}
