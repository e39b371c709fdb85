package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestDockerfile: no engine runs it here, so at least it says the same as the images that are built: programs, entry points
// and users.
func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	stages := map[string]string{}
	for _, s := range strings.Split("\n"+string(text), "\nFROM ")[1:] {
		first, rest, _ := strings.Cut(s, "\n")
		stages[first[strings.LastIndex(first, " ")+1:]] = rest
	}
	for stage, want := range map[string][]string{
		"agent": {"/out/edgemesh-agent /out/edgemesh-cni /usr/local/bin/", `ENTRYPOINT ["/usr/local/bin/edgemesh-agent"]`, `CMD ["run"]`, "iptables", "ca-certificates"},
		"relay": {"/out/edgemesh-relay /usr/local/bin/", `ENTRYPOINT ["/usr/local/bin/edgemesh-relay"]`, `CMD ["run"]`, "USER " + nobody, "ca-certificates"},
	} {
		for _, w := range want {
			if !strings.Contains(stages[stage], w) {
				t.Errorf("stage %s has no %q", stage, w)
			}
		}
	}
	if strings.Contains(stages["agent"], "USER") {
		t.Error("the agent needs root")
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if tags := regexp.MustCompile(`(?m)^TAGS +:= (\S+)$`).FindStringSubmatch(string(makefile)); tags == nil || !strings.Contains(string(text), "-tags "+tags[1]+" ") {
		t.Errorf("it does not build with make's tags %q", tags)
	}
	goMod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^go ([0-9]+\.[0-9]+)`).FindStringSubmatch(string(goMod))
	if !strings.Contains(string(text), "FROM golang:"+version[1]+"-") {
		t.Errorf("it builds with another Go than %s", version[1])
	}
}
