package main

import (
	"flag"
	"os"
	"testing"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"sigs.k8s.io/cri-tools/pkg/framework"
	_ "sigs.k8s.io/cri-tools/pkg/validate"
)

func TestMain(m *testing.M) {
	framework.RegisterFlags()
	flag.Parse()
	os.Exit(m.Run())
}

// TestCRI is critest: its own package has nothing but a test, so that no go.mod can name it.
func TestCRI(t *testing.T) {
	gomega.RegisterFailHandler(ginkgo.Fail)
	ginkgo.RunSpecs(t, "CRI validation")
}
