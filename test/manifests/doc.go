// Package manifests tests the chart and what is made from it, as a user meets
// them: helm renders, lints and installs, kubeconform validates against the
// schemas of Kubernetes, and a real API server takes it all. The tools are built
// once, from their Go modules, into a cache (build/tool.sh, test/kubeapi/build.sh).
package manifests
