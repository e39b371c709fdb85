package debian

import "strings"

// removal removes the agent's package from shop-1, in each case in which that may fail, and installs it again.
func (h hosts) removal() {
	h.t.Helper()
	const remove = "apt-get remove -y edgemesh-agent 2>&1; echo exit code $?"
	run := func(command, want string) {
		h.t.Helper()
		if out, err := h.ssh("shop-1", command); err != nil || !strings.Contains(out, want) {
			h.t.Errorf("%s: %v: %s\nwant %q", command, err, out, want)
		}
	}
	// A configuration that cannot be read: nothing happens.
	run("cp /etc/edgemesh/agent.yaml /root; echo 'stateDir: [' >>/etc/edgemesh/agent.yaml; "+remove, "nothing was changed")
	run("dpkg -s edgemesh-agent; systemctl is-enabled edgemesh-agent && systemctl is-active edgemesh-agent && echo runs", "runs")
	run("dpkg -s edgemesh-agent", "install ok installed")
	run("cp /root/agent.yaml /etc/edgemesh/agent.yaml; echo '{\"form\": \"static-pod\"}' >/var/lib/edgemesh/install.json; "+remove, "run 'edgemesh-agent uninstall'")
	run("systemctl is-active edgemesh-agent && echo runs", "runs")
	// As `edgemesh-agent install --node-ip --form daemonset` leaves it.
	const dropIn = "/etc/systemd/system/kubelet.service.d/90-edgemesh-node-ip.conf"
	run("mkdir -p ${d=$(dirname "+dropIn+")}; echo '[Service]' >"+dropIn+`; echo '{"form": "daemonset", "files": {"`+dropIn+
		`": "x"}, "nodeIP": ["10.244.1.1"]}' >/var/lib/edgemesh/install.json; `+remove, "exit code 0")
	run("cat /run/kubelet.log", "restarted")
	run("ls "+dropIn+" /usr/bin/edgemesh-agent /var/lib/edgemesh/install.json /sys/class/net/edgemesh-br 2>/dev/null | wc -l", "0")
	// An older package over the state of a newer agent is refused before anything of it is there.
	const install = "dpkg -i /root/edgemesh-agent_*_amd64.deb 2>&1; echo exit code $?"
	run("mv /var/lib/edgemesh/version /root; echo v9.9.0 >/var/lib/edgemesh/version; "+install, "was used by v9.9")
	run("ls /usr/bin/edgemesh-agent 2>/dev/null; dpkg -s edgemesh-agent", "config-files")
	run("mv /root/version /var/lib/edgemesh/version; "+install, "exit code 0")
}
