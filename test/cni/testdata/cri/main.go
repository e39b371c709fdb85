// Command cri makes pod sandboxes through a runtime's CRI socket, as kubelet
// does. It prints one line per result.
//
//	cri SOCKET ready                              waits until the runtime's network is ready
//	cri SOCKET network                            prints whether the network is ready, and why not
//	cri SOCKET run NAME UID ATTEMPT CGROUP PORT   prints the sandbox ID and its addresses
//	cri SOCKET status ID                          prints state and addresses
//	cri SOCKET stop ID
//	cri SOCKET remove ID
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cri:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("usage: cri SOCKET VERB …")
	}
	conn, err := grpc.NewClient("unix://"+args[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	rt := cri.NewRuntimeServiceClient(conn)
	switch verb, rest := args[1], args[2:]; verb {
	case "ready":
		return ready(ctx, rt)
	case "network":
		return network(ctx, rt)
	case "run":
		return runSandbox(ctx, rt, rest)
	case "status":
		return status(ctx, rt, rest[0])
	case "stop":
		_, err = rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: rest[0]})
	case "remove":
		_, err = rt.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: rest[0]})
	default:
		err = fmt.Errorf("unknown verb %q", verb)
	}
	return err
}

func ready(ctx context.Context, rt cri.RuntimeServiceClient) error {
	for {
		s, err := rt.Status(ctx, &cri.StatusRequest{})
		if err == nil {
			up := true
			for _, c := range s.Status.Conditions {
				up = up && (c.Status || c.Type != cri.RuntimeReady && c.Type != cri.NetworkReady)
			}
			if up {
				return nil
			}
			err = fmt.Errorf("%v", s.Status.Conditions)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("runtime is not ready: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func network(ctx context.Context, rt cri.RuntimeServiceClient) error {
	s, err := rt.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return err
	}
	for _, c := range s.Status.Conditions {
		if c.Type == cri.NetworkReady {
			fmt.Println(c.Status, c.Reason, c.Message)
		}
	}
	return nil
}

func runSandbox(ctx context.Context, rt cri.RuntimeServiceClient, args []string) error {
	if len(args) != 5 {
		return fmt.Errorf("run needs NAME UID ATTEMPT CGROUP PORT")
	}
	attempt, err := strconv.ParseUint(args[2], 10, 32)
	if err != nil {
		return err
	}
	port, err := strconv.ParseInt(args[4], 10, 32)
	if err != nil {
		return err
	}
	conf := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: args[0], Uid: args[1], Namespace: "default", Attempt: uint32(attempt)},
		Hostname: args[0],
		Linux:    &cri.LinuxPodSandboxConfig{CgroupParent: args[3]},
	}
	if port != 0 {
		conf.PortMappings = []*cri.PortMapping{{Protocol: cri.Protocol_TCP, ContainerPort: 80, HostPort: int32(port)}}
	}
	r, err := rt.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: conf})
	if err != nil {
		return err
	}
	fmt.Print(r.PodSandboxId, " ")
	return status(ctx, rt, r.PodSandboxId)
}

func status(ctx context.Context, rt cri.RuntimeServiceClient, id string) error {
	s, err := rt.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		return err
	}
	ips := []string{s.Status.Network.GetIp()}
	for _, ip := range s.Status.Network.GetAdditionalIps() {
		ips = append(ips, ip.Ip)
	}
	fmt.Println(s.Status.State, strings.Join(ips, " "))
	return nil
}
