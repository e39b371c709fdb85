package cniconf

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"edgemesh/internal/cni/conf"
	"edgemesh/internal/config"
)

// fakePlugin says which versions it supports.
func fakePlugin(t *testing.T, dir, name string, versions ...string) {
	t.Helper()
	b, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "supportedVersions": versions})
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name), fmt.Appendf(nil, "#!/bin/sh\necho '%s'\n", b), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func installed(t *testing.T, c Config) *libcni.NetworkConfigList {
	t.Helper()
	list, err := libcni.ConfListFromFile(filepath.Join(c.ConfDir, ConflistName))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func types(l *libcni.NetworkConfigList) string {
	var out []string
	for _, p := range l.Plugins {
		out = append(out, p.Network.Type)
	}
	return strings.Join(out, " ")
}

// What the operator wrote is what the plugin, and the agent's own upkeep, read.
func TestOptions(t *testing.T) {
	c := testConfig(t)
	c.DataDir = filepath.Join(t.TempDir(), "data")
	c.CNI = config.CNI{KeepFor: "72h", KeepOnly: "statefulset", Exclude: []string{"10.244.1.9"}, PromiscMode: true, AllowSpoofing: true}
	i := New(c)
	if err := i.Write(subnet("10.244.1.0/24")); err != nil {
		t.Fatal(err)
	}
	fromFile, err := conf.ParseNetConf(installed(t, c).Plugins[0].Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if err := fromFile.Validate(""); err != nil {
		t.Fatal(err)
	}
	ours, err := i.NetConf()
	if err != nil {
		t.Fatal(err)
	}
	for who, got := range map[string]*conf.NetConf{"the plugin": fromFile, "the agent": ours} {
		if got.Keep != 72*time.Hour || got.KeepOnly != conf.KeepStatefulSet || len(got.Excluded) != 1 || !got.PromiscMode || !got.AllowSpoofing ||
			got.RuntimeDir != c.RuntimeDir || got.DataDir != c.DataDir {
			t.Errorf("%s reads %+v", who, got)
		}
	}
	c.CNI = config.CNI{}
	if err := New(c).Write(subnet("10.244.1.0/24")); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"keep", "exclude", "promisc", "Spoofing"} {
		if b := installed(t, c).Bytes; strings.Contains(string(b), key) {
			t.Errorf("%s is written without need: %s", key, b)
		}
	}
}

func TestChained(t *testing.T) {
	c := testConfig(t)
	c.CNI.Chained = []map[string]any{
		{"type": "bandwidth"},
		{"type": "portmap", "capabilities": map[string]any{"portMappings": true}, "markMasqBit": 13},
		{"type": "tuning", "sysctl": map[string]any{"net.core.somaxconn": "512"}},
	}
	for _, name := range []string{"bandwidth", "portmap", "tuning"} {
		fakePlugin(t, c.BinDir, name, "1.0.0", "1.1.0")
	}
	if err := New(c).Write(subnet("10.244.1.0/24")); err != nil {
		t.Fatal(err)
	}
	l := installed(t, c)
	if types(l) != "edgemesh-cni bandwidth portmap tuning" || l.CNIVersion != "1.1.0" {
		t.Errorf("conflist is %s", l.Bytes)
	}
	if !l.Plugins[1].Network.Capabilities["bandwidth"] || !strings.Contains(string(l.Plugins[2].Bytes), "markMasqBit") || !strings.Contains(string(l.Plugins[3].Bytes), "somaxconn") {
		t.Errorf("conflist is %s", l.Bytes)
	}
	if c.CNI.Chained[0]["capabilities"] != nil {
		t.Error("the configuration was changed")
	}
	// One that only knows 1.0.0 keeps all of them there.
	fakePlugin(t, c.BinDir, "tuning", "0.4.0", "1.0.0")
	if err := New(c).Write(subnet("10.244.1.0/24")); err != nil || installed(t, c).CNIVersion != "1.0.0" {
		t.Errorf("%v, conflist is %s", err, installed(t, c).Bytes)
	}
	// None at all, also no portmap.
	c.CNI.Chained = []map[string]any{}
	if err := New(c).Write(subnet("10.244.1.0/24")); err != nil || types(installed(t, c)) != "edgemesh-cni" {
		t.Errorf("%v, conflist is %s", err, installed(t, c).Bytes)
	}
}

// A plugin that cannot be called must not end every pod.
func TestChainedThatCannotBeCalled(t *testing.T) {
	c := testConfig(t)
	c.CNI.Chained = []map[string]any{{"type": "bandwidth"}}
	i := New(c)
	err := i.Write(subnet("10.244.1.0/24"))
	if !errors.Is(err, ErrWaits) || !strings.Contains(err.Error(), "cni.chained[0]: bandwidth is not in "+c.BinDir) {
		t.Errorf("not installed: %v", err)
	}
	if _, err := os.Stat(filepath.Join(c.ConfDir, ConflistName)); err == nil {
		t.Error("the conflist is there")
	}
	fakePlugin(t, c.BinDir, "bandwidth", "0.3.1", "0.4.0")
	if err := i.Write(subnet("10.244.1.0/24")); !errors.Is(err, ErrWaits) || !strings.Contains(err.Error(), "does not know version 1.0.0") {
		t.Errorf("too old: %v", err)
	}
	fakePlugin(t, c.BinDir, "bandwidth", "0.4.0", "1.0.0")
	if err := i.Write(subnet("10.244.1.0/24")); err != nil || types(installed(t, c)) != "edgemesh-cni bandwidth" {
		t.Errorf("right version: %v", err)
	}
	// What works stays, and the error says that it is not what was configured.
	c.CNI.Chained = append(c.CNI.Chained, map[string]any{"type": "firewall"})
	i = New(c)
	if err := i.Write(subnet("10.244.1.0/24")); !errors.Is(err, ErrFormer) || types(installed(t, c)) != "edgemesh-cni bandwidth" {
		t.Errorf("another one that is not there: %v", err)
	}
	if err := os.Remove(filepath.Join(c.BinDir, "bandwidth")); err != nil {
		t.Fatal(err)
	}
	if err := i.Write(subnet("10.244.1.0/24")); !errors.Is(err, ErrWaits) {
		t.Errorf("one that is in use went: %v", err)
	}
}

// Where the operator installs the plugins, they are in the usual place, and what is
// elsewhere is for the runtime to find.
func TestPluginsOfTheOperator(t *testing.T) {
	c := testConfig(t)
	usual := c.BinDir
	c.BinDir = ""
	fakePlugin(t, usual, "portmap", "1.0.0", "1.1.0")
	i := New(c)
	i.usual = usual
	if err := i.Write(subnet("10.244.1.0/24")); err != nil {
		t.Fatal(err)
	}
	if l := installed(t, c); types(l) != "edgemesh-cni portmap" || l.CNIVersion != "1.1.0" {
		t.Errorf("conflist is %s", l.Bytes)
	}
	c.CNI.Chained = []map[string]any{{"type": "bandwidth"}}
	i = New(c)
	i.usual = usual
	if err := i.Write(subnet("10.244.1.0/24")); err != nil {
		t.Fatal(err)
	}
	if l := installed(t, c); types(l) != "edgemesh-cni bandwidth" || l.CNIVersion != "1.0.0" {
		t.Errorf("bandwidth could not be queried: conflist is %s", l.Bytes)
	}
	fakePlugin(t, usual, "portmap", "0.4.0")
	c.CNI.Chained = nil
	i = New(c)
	i.usual = usual
	if err := i.Write(subnet("10.244.1.0/24")); err != nil || types(installed(t, c)) != "edgemesh-cni" {
		t.Errorf("a portmap that no pod could be made with: %v, %s", err, installed(t, c).Bytes)
	}
}

// The runtime calls a node ready that has a conflist: not before STATUS is good.
func TestConflistWaitsForStatus(t *testing.T) {
	c := testConfig(t)
	bad := errors.New("docker0 has the pods' addresses")
	calls := 0
	c.Status = func(n *conf.NetConf) error {
		calls++
		if _, err := conf.LoadSubnet(n.RuntimeDir); err != nil {
			t.Errorf("STATUS was called before the subnet file was there: %v", err)
		}
		return bad
	}
	i := New(c)
	for range 2 {
		if err := i.Write(subnet("10.244.1.0/24")); !errors.Is(err, ErrWaits) || !errors.Is(err, bad) {
			t.Errorf("STATUS fails: %v", err)
		}
	}
	if entries, _ := os.ReadDir(c.ConfDir); len(entries) != 0 {
		t.Errorf("the runtime sees %v", entries)
	}
	bad = nil
	if err := i.Write(subnet("10.244.1.0/24")); err != nil || len(installed(t, c).Plugins) != 1 {
		t.Errorf("STATUS is good: %v", err)
	}
	// Later it stays, so that pods can be deleted, and the runtime calls STATUS by itself.
	bad, calls = errors.New("later"), 0
	if err := i.Write(subnet("10.244.1.0/24")); err != nil || calls != 0 {
		t.Errorf("with a conflist in place: %v, called %d times", err, calls)
	}
	if !slices.Equal([]string{ConflistName}, names(t, c.ConfDir)) {
		t.Errorf("the runtime sees %v", names(t, c.ConfDir))
	}
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// What a service mesh adds behind our entry stays where it is when the list is written again; what cni.chained no longer
// has goes. An entry whose plugin is missing or too old is named.
func TestForeignEntriesStay(t *testing.T) {
	c := testConfig(t)
	file := filepath.Join(c.ConfDir, ConflistName)
	write := func(want string) string {
		t.Helper()
		i := New(c)
		if err := i.Write(subnet("10.244.1.0/24")); err != nil {
			t.Fatal(err)
		}
		if l := installed(t, c); types(l) != want {
			t.Errorf("the list has %s, want %s", types(l), want)
		}
		return strings.Join(i.Unfit(), "; ")
	}
	add := func(at int, entry string) {
		t.Helper()
		var l map[string]any
		b, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(b, &l)
		}
		if err != nil {
			t.Fatal(err)
		}
		l["plugins"] = slices.Insert(l["plugins"].([]any), at, any(json.RawMessage(entry)))
		if b, err = json.Marshal(l); err == nil {
			err = os.WriteFile(file, b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	fakePlugin(t, c.BinDir, "portmap", "1.0.0", "1.1.0")
	fakePlugin(t, c.BinDir, "istio-cni", "1.0.0", "1.1.0")
	fakePlugin(t, c.BinDir, "bandwidth", "1.0.0", "1.1.0")
	write("edgemesh-cni portmap")
	add(2, `{"type":"istio-cni","name":"istio-cni","log_level":"info","big":12345678901234567890}`)
	if unfit := write("edgemesh-cni portmap istio-cni"); unfit != "" || installed(t, c).CNIVersion != "1.1.0" {
		t.Errorf("unfit: %s; version %s", unfit, installed(t, c).CNIVersion)
	}
	if b := string(installed(t, c).Plugins[2].Bytes); !strings.Contains(b, "12345678901234567890") && !strings.Contains(string(installed(t, c).Bytes), "12345678901234567890") {
		t.Errorf("the entry was changed: %s", b)
	}
	first, _ := os.ReadFile(file)
	write("edgemesh-cni portmap istio-cni")
	if again, _ := os.ReadFile(file); string(again) != string(first) {
		t.Errorf("written twice: %s, then %s", first, again)
	}
	add(1, `{"type":"linkerd-cni"}`)
	if unfit := write("edgemesh-cni linkerd-cni portmap istio-cni"); !strings.Contains(unfit, "linkerd-cni is not in "+c.BinDir) || installed(t, c).CNIVersion != "1.0.0" {
		t.Errorf("unfit: %q; version %s", unfit, installed(t, c).CNIVersion)
	}
	fakePlugin(t, c.BinDir, "linkerd-cni", "0.3.1")
	if unfit := write("edgemesh-cni linkerd-cni portmap istio-cni"); !strings.Contains(unfit, "linkerd-cni in "+c.BinDir+" does not know version 1.0.0") {
		t.Errorf("unfit: %q", unfit)
	}
	fakePlugin(t, c.BinDir, "linkerd-cni", "1.0.0")
	c.CNI.Chained = []map[string]any{{"type": "portmap"}, {"type": "bandwidth"}}
	write("edgemesh-cni linkerd-cni portmap istio-cni bandwidth")
	c.CNI.Chained = nil
	if unfit := write("edgemesh-cni linkerd-cni portmap istio-cni"); unfit != "" {
		t.Errorf("unfit: %q", unfit)
	}
	c.CNI.Chained = []map[string]any{}
	write("edgemesh-cni linkerd-cni istio-cni")
	add(0, `{"type":"before"}`) // no pod network of ours in front: not kept, and told
	var log strings.Builder
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	i := New(c)
	if err := i.Write(subnet("10.244.1.0/24")); err != nil || types(installed(t, c)) != "edgemesh-cni linkerd-cni istio-cni" {
		t.Errorf("%v: %s", err, types(installed(t, c)))
	}
	if x := i.Displaced(); x == nil || !slices.Equal(x.Plugins, []string{"before"}) || !strings.Contains(log.String(), "plugins=[before]") {
		t.Errorf("%+v; %s", x, log.String())
	}
}
