package kubeapi

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"
)

// Install applies our CRDs, RBAC and policies, and waits until they are served.
func (c *Cluster) Install() error {
	if _, err := c.Kubectl("create", "namespace", Namespace); err != nil &&
		!strings.Contains(err.Error(), "AlreadyExists") {
		return err
	}
	if _, err := c.Kubectl("apply", "-f", filepath.Join(c.Root, "manifests/edgemesh/crds")); err != nil {
		return err
	}
	if err := c.AwaitCRDs(); err != nil {
		return err
	}
	if err := c.apply("", "rbac.yaml", "policy.yaml"); err != nil {
		return err
	}
	if c.Old() {
		return nil
	}
	return c.AwaitPolicies()
}

// Old says that the API server has no ValidatingAdmissionPolicies: nothing guards our objects.
func (c *Cluster) Old() bool { return c.Before("1.30.0") }

// Loose says that the API server cannot check ranges: agents do.
func (c *Cluster) Loose() bool { return c.Before("1.31.0") }

// Before says that the cluster is older than that version.
func (c *Cluster) Before(v string) bool {
	have, err := version.ParseGeneric(c.Version)
	return err == nil && have.LessThan(version.MustParseGeneric(v))
}

// AwaitCRDs waits until our CRDs are served. kubectl wait does not wait for the conditions of one that has none yet: it
// fails, because they are null.
func (c *Cluster) AwaitCRDs() error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		_, err := c.Kubectl("wait", "--for=condition=Established", "--timeout=60s",
			"crd/podnetworks.network.edgemesh.io", "crd/meshnodes.network.edgemesh.io",
			"crd/podblocks.network.edgemesh.io", "crd/noderecords.network.edgemesh.io", "crd/policygroups.network.edgemesh.io")
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// KubeEdge adds the rights of kubeedge.enabled.
func (c *Cluster) KubeEdge() error { return c.apply("kubeedge.enabled", "rbac.yaml") }

// Signing adds the rights of controller.sign, or takes them back.
func (c *Cluster) Signing(on bool) error {
	if !on {
		return c.apply("", "rbac.yaml")
	}
	return c.apply("controller.sign", "rbac.yaml")
}

// KeepsRecords takes back kubelets' right to list Nodes, as controller.enabled does. Install gives it: many clusters of tests have
// no controller.
func (c *Cluster) KeepsRecords() error { return c.apply("controller.enabled", "rbac.yaml") }

// apply applies templates of the chart without controllers, with one value set to true, "" for none.
func (c *Cluster) apply(enabled string, names ...string) error {
	chart := filepath.Join(c.Root, "manifests/edgemesh")
	var doc bytes.Buffer
	var values map[string]any
	text, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return err
	}
	if err := yaml.Unmarshal(text, &values); err != nil {
		return err
	}
	part, key, _ := strings.Cut("controller.enabled", ".")
	for _, on := range []bool{false, true} {
		if of, ok := values[part].(map[string]any); ok {
			of[key] = on
		}
		part, key, _ = strings.Cut(enabled, ".")
	}
	for _, name := range names {
		t := template.New(name)
		_, err := t.Funcs(template.FuncMap{"toString": fmt.Sprint, "semverCompare": compareVersion}).ParseFiles(filepath.Join(chart, "templates", name))
		if err != nil {
			return err
		}
		t.Option("missingkey=error")
		data := map[string]any{"Values": values, "Release": map[string]string{"Namespace": Namespace, "Name": "edgemesh"},
			"Capabilities": map[string]any{"KubeVersion": map[string]string{"Version": c.Version}}}
		if err := t.Execute(&doc, data); err != nil {
			return err
		}
		doc.WriteString("\n---\n")
	}
	_, err = c.KubectlStdin(doc.String(), "apply", "-f", "-")
	return err
}

// compareVersion is semverCompare of Helm's, as far as these templates use it: ">=1.31.0-0".
func compareVersion(constraint, v string) (bool, error) {
	limit, err := version.ParseGeneric(strings.TrimPrefix(constraint, ">="))
	if err != nil {
		return false, err
	}
	have, err := version.ParseGeneric(v)
	return err == nil && have.AtLeast(limit), err
}

// AwaitPolicies waits until the API server enforces the policies: it learns of them by
// watches, some time after it has stored them, and takes what has come once a second. It
// enforces the first ones up to a second before the last, so the last is what to wait for.
func (c *Cluster) AwaitPolicies() error {
	const says = "an edge may not write the CustomResourceDefinitions of EdgeMesh"
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		_, err := c.Kubectl("label", "--dry-run=server", "crd/podnetworks.network.edgemesh.io", "edgemesh-probe=x",
			"--as=system:serviceaccount:kubeedge:cloudcore", "--as-group=system:masters", "--as-group=system:authenticated")
		if err != nil && strings.Contains(err.Error(), says) {
			return nil
		}
		if time.Now().After(end) {
			err = cmp.Or(err, errors.New("it was accepted"))
			return fmt.Errorf("the last of the policies is not enforced: %w", err)
		}
	}
}
