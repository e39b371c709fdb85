package main

import (
	"errors"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	current "github.com/containernetworking/cni/pkg/types/100"

	"edgemesh/internal/cni/conf"
	"edgemesh/internal/cni/ipam"
	"edgemesh/internal/cni/podlink"
)

// FuzzStdin is all that is read from a runtime, for every verb: bad input is an
// error with a code of its own.
func FuzzStdin(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.1.0","name":"edgemesh","type":"edgemesh-cni","cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]}`), "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b", "c1")
	f.Add([]byte(`{"cniVersion":"0.3.1","name":"n","prevResult":{"cniVersion":"0.3.1","interfaces":[{"name":"eth0","sandbox":"/ns"}],
		"ips":[{"version":"4","interface":0,"address":"10.1.1.2/24","gateway":"10.1.1.1"}],"routes":[{"dst":"0.0.0.0/0"}]}}`), "IP=10.1.1.2", "c1")
	f.Add([]byte(`{"cniVersion":"1.0.0","name":"n","prevResult":{"cniVersion":"1.0.0","ips":[{"address":null,"interface":7},{}]},"cni.dev/attachments":null}`), ";", "")
	f.Fuzz(func(t *testing.T, stdin []byte, cniArgs, id string) {
		known := func(err error) {
			if err != nil && !errors.Is(err, conf.ErrNetConf) && !errors.Is(err, conf.ErrArgs) && !errors.Is(err, podlink.ErrDiffers) {
				t.Fatalf("error of no class: %v", err)
			}
		}
		c, err := (&plugin{}).parse(&skel.CmdArgs{StdinData: stdin, ContainerID: id, IfName: "eth0"})
		known(err)
		if err != nil {
			return
		}
		known(c.Validate(cniArgs))
		known(c.checkNames())
		_, err = c.validAttachments(stdin)
		known(err)
		prev, err := c.earlierResult()
		known(err)
		var recs []ipam.Record
		if prev != nil {
			_, err = c.recorded(prev, recs, "/ns")
			known(err)
		}
		ours := &current.Result{CNIVersion: current.ImplementedSpecVersion,
			Interfaces: []*current.Interface{{Name: "eth0"}}, IPs: []*current.IPConfig{{Interface: current.Int(0)}}}
		r := chained(prev, ours)
		if last := r.IPs[len(r.IPs)-1]; r.Interfaces[*last.Interface].Name != "eth0" {
			t.Fatalf("result %+v", r)
		}
	})
}
