package lab

import "testing"

func TestIsProduct(t *testing.T) {
	for _, c := range []struct {
		want bool
		args []string
	}{
		{true, []string{"ip", "netns", "exec", "n", "/b/edgemesh-agent", "run"}},
		{true, []string{"ip", "netns", "exec", "n", "env", "A=b", "taskset", "-c", "0", "/b/edgemesh-relay"}},
		{true, []string{"ip", "netns", "exec", "n", "env", "CNI_PATH=/b", "/b/edgemesh-cni"}},
		{false, []string{"ip", "netns", "exec", "edgemesh-agent-1", "/b/podtool", "serve"}},
		{false, []string{"ip", "netns", "exec", "n", "ping", "10.244.1.2"}},
	} {
		if got := isProduct(c.args); got != c.want {
			t.Errorf("%q is the product: %v, want %v", c.args, got, c.want)
		}
	}
}
