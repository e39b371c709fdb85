// Package manifests holds the files of this folder that `edgemesh-agent install`
// hands out. They can be used by hand as they are; what differs per node is
// replaced here.
package manifests

import (
	_ "embed"
	"regexp"
	"strings"
)

//go:embed systemd/edgemesh-agent.service
var agentUnit string

//go:embed static-pod/edgemesh-agent.yaml
var agentPod string

// AgentUnit is the agent's systemd unit, for binaries in prefix/bin.
func AgentUnit(prefix string) string {
	return strings.Replace(agentUnit, "ExecStart=/usr/local/bin/", "ExecStart="+strings.TrimSuffix(prefix, "/")+"/bin/", 1)
}

// AgentPod is the agent's static pod; image "" leaves the image of this release.
func AgentPod(image string) string {
	if image == "" {
		return agentPod
	}
	line := regexp.MustCompile(`(?m)^(\s+image: ).*$`)
	return line.ReplaceAllString(agentPod, "${1}"+strings.ReplaceAll(image, "$", "$$"))
}
